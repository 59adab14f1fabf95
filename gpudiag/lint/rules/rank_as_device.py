"""The rank of the job used as the number of a GPU, or the rank of the machine as that of the job."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.origins import calls_behind
from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.ranks import is_stand_in
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import DDP_CLASSES, INIT, SAMPLER

_LAUNCHERS = {"SLURM_PROCID": "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_LOCAL_RANK"}


def _find(program: Program) -> Iterator[Mistake]:
    if _is_on_one_machine(program):
        return
    if not program.starts_processes:
        yield from _find_devices(program)
    yield from _find_ranks(program)


def _is_on_one_machine(program: Program) -> bool:
    """Whether a script, or the tests in it, runs on one machine, where the two ranks are equal."""
    sizes = [argument(step.node, 3, "world_size") for step in program.opens_group]
    return program.mentions(
        "localhost", "127\\.0\\.0\\.1", "standalone", "single.node", "pytest", "unittest"
    ) or any(
        program.names.qualify(call.func) == "torch.cuda.device_count"
        for call in calls_behind(program, [s for s in sizes if s])
    )


def _find_devices(program: Program) -> Iterator[Mistake]:
    uses = [argument(step.node, 0, "device") for step in program.calls("torch.cuda.set_device")]
    for step in program.calls(*sorted(DDP_CLASSES)):
        ids = keyword(step.node, "device_ids")
        uses += list(ids.elts) if isinstance(ids, ast.List) else []
    uses += [
        step.node.args[1]
        for step in program.calls("torch.device")
        if isinstance(step.node, ast.Call) and len(step.node.args) == 2
    ]
    uses += [
        step.node.args[0]
        for name in ("to", "cuda")
        for step in program.methods.get(name, [])
        if isinstance(step.node, ast.Call) and step.node.args
    ]
    uses += [argument(step.node, 0, "device") for step in program.calls("torch.device")]
    for place in [text for use in uses for text in (use, *_texts_of(program, use))]:
        use = _number_in(place)
        # A name alone may be a local rank by another name: only what surely is the rank of the job.
        if use is None or not _is_sure(program, use):
            continue
        shown = ast.unparse(place) if place is not None else ""
        number = rf"(?<![\w.]){re.escape(ast.unparse(use))}(?!\w)"
        fixed = re.sub(number, _local_rank(program, use), shown)
        edits = program.edit(place, fixed) if place is not None else ()
        fix = (
            program.edited_line(edits)
            if edits
            else with_replaced(program, place, fixed)
            if place is not None
            else ""
        )
        yield Mistake(
            use,
            "the rank of the job is used as the number of a GPU: on a second machine there is no such GPU",
            fix,
        )
        return


def _texts_of(program: Program, use: ast.expr | None) -> Iterator[ast.expr]:
    """What a name of a device holds where it is made up of a text and a number."""
    for binding in program.values.reaching(use) if isinstance(use, ast.Name | ast.Attribute) else ():
        if isinstance(binding.value, ast.JoinedStr | ast.BinOp):
            yield binding.value


def _local_rank(program: Program, use: ast.expr) -> str:
    """The expression for the GPU's number in place of the rank, for the launcher that set the rank."""
    for value in program.values.of(use):
        if value.node is not None and _is_horovods(program, value.node):
            return ast.unparse(value.node).replace(".rank()", ".local_rank()")
        made = ast.unparse(value.node) if value.node is not None else ""
        for rank, local_rank in _LAUNCHERS.items():
            if f"'{rank}'" in made:
                return f'int(os.environ["{local_rank}"])'
    return 'int(os.environ["LOCAL_RANK"])'


def _number_in(place: ast.expr | None) -> ast.expr | None:
    """The number of a device: `rank` of `rank`, of `f"cuda:{rank}"`, and of `"cuda:%d" % rank`."""
    if isinstance(place, ast.JoinedStr):
        named = [part.value for part in place.values if isinstance(part, ast.FormattedValue)]
        return named[0] if len(named) == 1 and ast.unparse(place)[2:].startswith("cuda:") else None
    if isinstance(place, ast.BinOp):
        text = place.left.value if isinstance(place.left, ast.Constant) else None
        return place.right if isinstance(place.op, ast.Mod) and text in ("cuda:%d", "cuda:%s") else None
    return place


def _is_sure(program: Program, use: ast.expr) -> bool:
    values = [value for value in program.values.of(use) if not is_stand_in(value.node)]
    return {value.kind for value in values} == {"rank"} and all(
        _is_horovods(program, value.node)
        or (
            value.node is not None
            and re.search(r"get_rank|'RANK'|'SLURM_PROCID'|'OMPI_COMM_WORLD_RANK'", ast.unparse(value.node))
        )
        for value in values
    )


def _is_horovods(program: Program, node: ast.AST | None) -> bool:
    called = program.names.qualify(node.func) if isinstance(node, ast.Call) else None
    return called is not None and called.startswith("horovod.")


def _find_ranks(program: Program) -> Iterator[Mistake]:
    for name, keyword_name in ((INIT, "rank"), (SAMPLER, "rank")):
        for step in program.calls(name):
            given = keyword(step.node, keyword_name) or (
                argument(step.node, 2, "rank") if name == SAMPLER else None
            )
            values = program.values.of(given) if given is not None else frozenset()
            made = [ast.unparse(value.node) for value in values if value.node is not None]
            if not values or any(value.kind != "local_rank" for value in values):
                continue
            if not all("LOCAL_RANK" in text or "local_rank()" in text or "LOCALID" in text for text in made):
                continue
            right = (
                "hvd.rank()" if any("local_rank()" in text for text in made) else 'int(os.environ["RANK"])'
            )
            fix = with_replaced(program, given, right) if given is not None else ""
            yield Mistake(
                step.node,
                "the local rank is used as the rank of the job: each machine has its own rank 0",
                fix,
            )


RULE = Rule(
    title="the rank of the job and the local rank are mixed up",
    why=(
        "On one machine the two are equal; on two they are not. Rank 8 then asks for GPU 8, which is not "
        "there, or two processes call themselves rank 0 and the group never forms."
    ),
    find=_find,
)
