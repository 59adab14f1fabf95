"""`.cuda()` without an index where nothing has chosen the rank's GPU."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of, with_replaced
from gpudiag.lint.origins import calls_behind
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.vocabulary import INIT

_CHOSEN_BY = tuple(
    """
    set_device set_device_index init_device_mesh CUDA_VISIBLE_DEVICES device_id
    set_default_device device_ids
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate or program.uses_deepspeed:
        return
    horovod = program.uses_horovod and bool(program.calls("horovod.torch.init"))
    if not horovod and not (program.ddp_steps and program.opens_group and _on_gpus(program)):
        return
    yield from _find_fixed(program)
    if program.mentions(*(word for word in _CHOSEN_BY if word != "device_ids")) or program.calls(
        "torch.cuda.device"
    ):
        return
    for name in ("cuda", "to"):
        for step in program.methods.get(name, []):
            if (
                _is_unindexed(program, step)
                and _is_model(program, step)
                and program.which_ranks(step) is None
            ):
                rank = "hvd.local_rank()" if horovod else 'int(os.environ["LOCAL_RANK"])'
                yield Mistake(
                    step.node,
                    "no GPU was chosen for this rank: all ranks of a machine put their model on GPU 0",
                    f"torch.cuda.set_device({rank})",
                    place=in_front_of(program, step.node),
                )
                return


def _find_fixed(program: Program) -> Iterator[Mistake]:
    """A GPU that is written down, and DDP over several: each rank has one of its own."""
    if program.mentions("CUDA_VISIBLE_DEVICES", "\\w*SLURM\\w*", "\\w*MPI\\w*"):
        return  # each rank may see one GPU alone
    if any(is_constant(argument(step.node, 3, "world_size"), 1) for step in program.opens_group):
        return
    for step in (*program.ddp_steps, *program.calls("torch.cuda.set_device")):
        ids = keyword(step.node, "device_ids")
        given = list(ids.elts) if isinstance(ids, ast.List) else [argument(step.node, 0, "device")]
        if ids is None and step in program.ddp_steps:  # `DDP(model.to("cuda:0"))`
            inner = argument(step.node, 0, "module")
            moves = [c for c in calls_behind(program, [inner] if inner else []) if c.args]
            given = [c.args[0] for c in moves if getattr(c.func, "attr", "") in ("to", "cuda")]
        if any("__name__" not in ast.unparse(guard.test) for guard in step.where.guards):
            continue
        if (len(given) > 1 and ids is not None) or (ids is not None and "device_count()" in ast.unparse(ids)):
            message = "DDP takes one GPU for each process, and gets several"
        elif ids is not None and not isinstance(ids, ast.List):
            continue
        elif given and (gpu := _fixed_gpu(program, given[0])) is not None:
            message = f"every rank takes GPU {gpu}: all ranks of a machine share it"
        else:
            continue
        chosen, place = 'int(os.environ["LOCAL_RANK"])', ids if ids is not None else given[0]
        text = chosen if ids is None else f"[{chosen}]"
        yield Mistake(step.node, message, with_replaced(program, place, text) if place is not None else "")
        return


def _fixed_gpu(program: Program, node: ast.expr | None) -> str | None:
    """The number of the GPU that a device always is: `0`, `"cuda:0"`, or torch.device of it."""
    found = set()
    for value in program.values.of(node):
        made = value.node
        if value.kind == "device" and isinstance(made, ast.Call) and made.args:
            made = made.args[-1]
        written = made.value if isinstance(made, ast.Constant) and type(made.value) in (int, str) else None
        found.add(str(written).removeprefix("cuda:"))
    return found.pop() if len(found) == 1 and all(number.isdecimal() for number in found) else None


def _on_gpus(program: Program) -> bool:
    """Whether the group may be NCCL's: ranks under gloo can share a GPU, and often are alone on a machine."""
    for step in program.calls(INIT):
        values = program.values.of(_backend(step)) if _backend(step) is not None else ()
        if any(is_constant(value.node, "gloo", "mpi") for value in values):
            return False
    return True


def _backend(step: Step) -> ast.expr | None:
    call = step.node
    return call.args[0] if isinstance(call, ast.Call) and call.args else keyword(call, "backend")


def _is_unindexed(program: Program, step: Step) -> bool:
    call = step.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return not call.args and not any(k.arg == "device" for k in call.keywords)
    return len(call.args) == 1 and _is_bare_cuda(program, call.args[0])


def _is_bare_cuda(program: Program, node: ast.expr) -> bool:
    """Whether a device is `cuda` without a number, perhaps `cpu` where there is none."""
    texts = []
    for value in program.values.of(node):
        made = (
            value.node.args[0]
            if value.kind == "device" and isinstance(value.node, ast.Call) and len(value.node.args) == 1
            else value.node
        )
        parts = [made.body, made.orelse] if isinstance(made, ast.IfExp) else [made]
        texts += [part.value if isinstance(part, ast.Constant) else None for part in parts]
    return "cuda" in texts and all(text in ("cuda", "cpu") for text in texts)


def _is_model(program: Program, step: Step) -> bool:
    kinds, named = program.values.kinds(step.receiver), step.receiver
    name = named.id if isinstance(named, ast.Name) else getattr(named, "attr", "")
    wrapped = [argument(ddp.node, 0, "module") for ddp in program.ddp_steps]
    return (
        bool(kinds & {"module", "ddp"})
        or name in ("model", "net", "network")
        or any(call is step.node for call in calls_behind(program, [node for node in wrapped if node]))
    )


RULE = Rule(
    title="no rank has chosen its GPU, or all ranks take the same one",
    why=(
        "`.cuda()` and `cuda` without a number mean GPU 0 until torch.cuda.set_device is called: all ranks "
        "of a machine share it, run out of its memory, or NCCL refuses two ranks on one GPU. So it is where "
        "the number is written down."
    ),
    find=_find,
)
