"""mp.spawn that cannot start what it is given."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of, with_keyword, with_replaced
from gpudiag.lint.names import Function
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.vocabulary import INIT, SPAWN

_ADDRESSES = "MASTER_ADDR MASTER_PORT init_method store FileStore TCPStore environ putenv dotenv".split()
_KNOWN = frozenset(
    """
    torch os argparse numpy random time torchvision tqdm sys math datetime logging json pathlib functools
    collections typing
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    seen = set()
    for step in program.calls(*sorted(SPAWN)):
        if step.node in seen:
            continue
        seen.add(step.node)
        yield from _judge(program, step)


def _judge(program: Program, step: Step) -> Iterator[Mistake]:
    given = argument(step.node, 0, "fn")
    if isinstance(given, ast.Call) and not _makes_function(program, given):
        yield Mistake(
            step.node,
            "mp.spawn gets the result of a call instead of a function",
            with_replaced(program, given, ast.unparse(given.func)),
        )
        return
    made = (value.node for value in program.values.of(given) if value.kind == "function")
    function = program.values.function_of(given) or next(made, None)
    if not isinstance(function, Function):
        return
    if program.script.kind == "notebook" and not is_constant(
        keyword(step.node, "start_method"), "fork", "forkserver"
    ):
        yield Mistake(
            step.node,
            "a function of a notebook cannot be found by the processes that mp.spawn starts",
            "",
            advice=(
                f"keep {ast.unparse(given) if given is not None else 'it'} in a file and import it, or call "
                "torch.multiprocessing.start_processes with start_method='fork'"
            ),
        )
        return
    if _cannot_be_sent(program, step, function):
        yield Mistake(
            step.node,
            "mp.spawn gets a lambda or a function from within another one, which cannot be pickled",
            "",
            advice="define the function at the top level of the file, and pass what it needs in args",
        )
        return
    yield from _judge_arguments(program, step, function)
    if program.script.kind == "script" and program.script.whole and _is_unguarded(step):
        yield Mistake(
            step.node,
            "mp.spawn is at the top level of the script: every process that it starts runs it again",
            f'if __name__ == "__main__": {program.statement_text(step.node)}',
        )
    if _lacks_address(program, step):
        yield Mistake(
            step.node,
            "the ranks rendezvous by env://, but MASTER_ADDR and MASTER_PORT are never set",
            'os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"',
            place=in_front_of(program, step.node),
        )


def _cannot_be_sent(program: Program, step: Step, function: Function) -> bool:
    """Whether fresh processes cannot import the function: a lambda, or one of a function's own."""
    if argument(step.node, 5, "start_method") is not None or program.mentions("set_start_method"):
        return False
    return isinstance(function, ast.Lambda) or program.names.function_around(function) is not None


def _makes_function(program: Program, given: ast.Call) -> bool:
    """Whether the call makes something that can be called: partial, a class, a function from elsewhere."""
    function = program.values.function_of(given.func)
    return function is None or any(
        isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function)
    )


def _judge_arguments(program: Program, step: Step, function: Function) -> Iterator[Mistake]:
    given = argument(step.node, 1, "args")
    if not isinstance(step.node, ast.Call):
        return
    if isinstance(function, ast.Lambda) or function.args.vararg is not None or function.decorator_list:
        return
    if isinstance(given, ast.Name | ast.Constant | ast.Attribute) and not isinstance(given, ast.Attribute):
        kinds = program.values.kinds(given)
        if kinds and kinds <= {"int", "world_size", "str", "float"}:
            yield Mistake(
                step.node,
                "args of mp.spawn must be a tuple",
                with_replaced(program, given, f"({ast.unparse(given)},)"),
            )
        return
    if given is not None and not (
        isinstance(given, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in given.elts)
    ):
        return
    count = 1 + (len(given.elts) if isinstance(given, ast.Tuple) else 0)
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    least = len(names) - len(function.args.defaults)
    if not least <= count <= len(names):
        takes = f"{least}" if least == len(names) else f"{least} to {len(names)}"
        yield Mistake(
            step.node,
            f"{function.name} takes {takes} arguments and gets {count}: the index of the process, then args",
            with_keyword(
                program, step.node, "args", f"({', '.join(names[1:])}{',' if len(names) == 2 else ''})"
            ),
        )


def _is_unguarded(step: Step) -> bool:
    return step.where.entry is None and not any("__name__" in ast.unparse(g.test) for g in step.where.guards)


def _lacks_address(program: Program, step: Step) -> bool:
    """Whether the spawned function opens the group by the environment, and the whole file never sets it."""
    if program.mentions(*_ADDRESSES):
        return False
    opened = [
        o
        for o in program.calls(INIT)
        if o.where.spawned
        and any(f in o.where.stack for f in [program.values.function_of(argument(step.node, 0, "fn"))])
    ]
    if not opened or any(len(o.node.args) > 1 for o in opened if isinstance(o.node, ast.Call)):
        return False
    return not any(
        _is_foreign(program, other)
        for other in program.steps
        if other.where.spawned or other.where.entry is None
    )


def _is_foreign(program: Program, step: Step) -> bool:
    """Whether a step calls something of another file of the user, which may set the variables."""
    if not isinstance(step.node, ast.Call):
        return False
    name = program.names.qualify(step.node.func)
    return name is not None and name.split(".")[0] not in _KNOWN


RULE = Rule(
    title="this call of mp.spawn cannot start the ranks",
    why=(
        "mp.spawn calls `fn(index, *args)` in fresh processes that import the script again. Wrong arguments "
        "raise in every rank; a call at the top level starts processes without end, which Python refuses; a "
        "function of a notebook is not found; a lambda cannot be pickled; env:// needs an address."
    ),
    find=_find,
)
