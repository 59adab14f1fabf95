"""A file that one rank writes, and that all ranks read with nothing to wait for in between."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step

_WRITES = {"torch.save": (1, "f"), "numpy.save": (0, "file"), "open": (0, "file")}
_READS = {"torch.load": (0, "f"), "numpy.load": (0, "file"), "open": (0, "file")}
_HARMLESS = "state_dict load_state_dict to cuda cpu train eval format info print get items keys".split()
# What may wait for other ranks, or look whether the file is there: by a call's text.
_WAITS = re.compile(
    r"barrier|sync|wait|gather|reduce|cast|sleep|exist|isf|parallel|[fd]s?dp|shard|backward|prep|init|lock",
    re.IGNORECASE,
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or not (program.opens_group or program.ddp_steps):
        return
    if any(program.which_ranks(step) for step in program.calls("torch.distributed.barrier")):
        return  # ranks wait for one another by turns
    written: dict[str, Step] = {}
    made: dict[str, Step] = {}
    for step in program.steps:
        call = step.node
        if not isinstance(call, ast.Call) or step.where.handling:
            continue
        which = program.which_ranks(step)
        name = program.names.qualify(call.func) or ast.unparse(call.func)
        path, to_write = _path(program, call, name, _WRITES), _is_writing(call, name)
        if (folder := _folder(call, name)) and which is Which.ONE:
            made[folder] = step
        first = _made_for(path, made) if path and to_write and which is None else None
        if first is not None and _follows(first, step):
            message = "rank 0 may not have made this folder yet: the others do not wait for it"
            yield Mistake(call, message, "dist.barrier()", place=in_front_of(program, call))
            return
        if path and to_write and which is Which.ONE:
            written[path] = step
        elif (path := _path(program, call, name, _READS)) in written and which is None and not to_write:
            if _follows(written[path], step):
                message = (
                    "rank 0 may still be writing this file, or has not begun: the others do not wait for it"
                )
                yield Mistake(call, message, "dist.barrier()", place=in_front_of(program, call))
                return
        elif which is not Which.ONE and (_WAITS.search(ast.unparse(call.func)) or _is_hidden(program, call)):
            written.clear()
            made.clear()
        elif folder and which is None:
            made.clear()


def _path(program: Program, call: ast.Call, name: str, known: dict[str, tuple[int, str]]) -> str:
    """The path that a call reads or writes, with the scope of its name; empty of any other call."""
    given = argument(call, *known[name]) if name in known else None
    if given is None:
        return ""
    home = program.names.find_scope(given) if isinstance(given, ast.Name) else None
    return f"{ast.unparse(given)} {id(home)}"


def _folder(call: ast.Call, name: str) -> str:
    """The folder that a call makes, as text; empty of any other call."""
    if name in ("os.makedirs", "os.mkdir") and call.args:
        return ast.unparse(call.args[0])
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir"
    return ast.unparse(call.func.value) if is_method and isinstance(call.func, ast.Attribute) else ""


def _made_for(path: str, made: dict[str, Step]) -> Step | None:
    """Where the folder of a path was made: `os.path.join(folder, ..)`, `folder / ..`, a text with it."""
    begins = (r"(?:os\.path\.)?join\({0},", r"{0} / ", r"f['\"]\{{{0}\}}/")
    return next(
        (
            step
            for folder, step in made.items()
            if any(re.match(begin.format(re.escape(folder)), path) for begin in begins)
        ),
        None,
    )


def _is_writing(call: ast.Call, name: str) -> bool:
    mode = argument(call, 1, "mode") if name == "open" else None
    return name in ("torch.save", "numpy.save") or (isinstance(mode, ast.Constant) and "w" in str(mode.value))


def _follows(write: Step, read: Step) -> bool:
    """Whether each run that writes also comes to the read."""
    before = {(ast.unparse(guard.test), guard.holds) for guard in write.where.guards}
    return write.where.entry is read.where.entry and all(
        (ast.unparse(guard.test), guard.holds) in before for guard in read.where.guards
    )


def _is_hidden(program: Program, call: ast.Call) -> bool:
    """Whether a call runs what the script does not show: it may wait there."""
    if program.values.function_called(call.func) is not None:
        return False
    package = (program.names.qualify(call.func) or "").split(".")[0]
    if package:
        return package not in ("torch", "os", "numpy", "json", "pickle", "math", "time", "logging")
    return isinstance(call.func, ast.Attribute) and call.func.attr not in _HARMLESS


RULE = Rule(
    title="all ranks use a file or folder that one rank makes, without a barrier in between",
    why=(
        "The others come to the read while rank 0 writes, or before: they find no file, half of one, or "
        "the one of the last run. If rank 0 has not made the folder yet, they cannot save in it. A barrier "
        "after the write makes them wait."
    ),
    find=_find,
)
