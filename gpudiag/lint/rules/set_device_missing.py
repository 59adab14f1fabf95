"""`.cuda()` without an index where nothing has chosen the rank's GPU."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of
from gpudiag.lint.program import Mistake, Program, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.vocabulary import INIT

_CHOSEN_BY = (
    "set_device",
    "set_device_index",
    "init_device_mesh",
    "CUDA_VISIBLE_DEVICES",
    "device_id",
    "set_default_device",
    "device_ids",
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate or program.uses_deepspeed:
        return
    horovod = program.uses_horovod and bool(program.calls("horovod.torch.init"))
    if not horovod and not (program.ddp_steps and program.opens_group and _on_gpus(program)):
        return
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
    func = step.node.func if isinstance(step.node, ast.Call) else None
    if not isinstance(func, ast.Attribute):
        return False
    kinds = program.values.kinds(func.value)
    name = func.value.id if isinstance(func.value, ast.Name) else getattr(func.value, "attr", "")
    return bool(kinds & {"module", "ddp"}) or name in ("model", "net", "network")


RULE = Rule(
    title="the model goes to the current GPU, and no rank has chosen one",
    why=(
        "`.cuda()` and `cuda` without a number mean GPU 0 until torch.cuda.set_device is called: all ranks "
        "of a machine share it, run out of its memory, or NCCL refuses two ranks on one GPU."
    ),
    find=_find,
)
