"""A metric over a rank's share of the test data that is reported as that of all the data."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import behind
from gpudiag.lint.origins import origins
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import (
    iterated,
    loaders_of,
    sampler_of,
    samples_by_rank,
    training_loaders,
    without_gradients,
)

_FIGURE = re.compile(r"(?:loss|acc|metric|score|err|correct|iou|dice|psnr)\w*\b.*\.item\(\)$", re.IGNORECASE)
_SHARED = re.compile(r"reduce$|all_?gather|broadcast|reduce_|sync|average|mean_", re.IGNORECASE)
_MESSAGE = "each rank counts only its share of the test data, and no call adds up the shares"
_ADVICE = "add up the figures by all_reduce, or all_gather the list"
_REDUCED = (
    r"\w*(?:reduce|gather|synchroni[sz]e|aggregate)\w* torchmetrics send AverageMeter\w* sync\w* MetricLogger"
).split()


def _find(program: Program) -> Iterator[Mistake]:
    yield from _find_monitored(program)
    if program.owner or program.uses_deepspeed:
        return
    yield from _find_scheduled(program)
    if program.mentions(*_REDUCED):
        return
    if program.uses_accelerate:
        yield from _find_prepared(program)
    if program.uses_accelerate or not (program.ddp_steps or program.uses_horovod):
        return
    training = {loader for loader, _, _ in training_loaders(program)}
    reported = set()
    for step in program.steps:
        if not isinstance(step.node, ast.For) or step.node in reported:
            continue
        for loader in loaders_of(program, step.node):
            if loader in training or not samples_by_rank(program, sampler_of(loader)):
                continue
            counted = _counted(program, step)
            if counted is None:
                continue
            reported.add(step.node)
            if not isinstance(counted, ast.AugAssign):
                yield Mistake(counted, _MESSAGE, "", advice=_ADVICE)
                continue
            total = ast.unparse(counted.target)
            fix = (
                f"{total} = hvd.allreduce(torch.tensor({total}), op=hvd.Sum)"
                if program.uses_horovod
                else f"dist.all_reduce({total})  # a tensor on the rank's GPU"
            )
            yield Mistake(counted, _MESSAGE, fix, place=behind(program, step.node))
    for node in program.nodes:
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and _FIGURE.search(ast.unparse(node.elt)):
            values = program.values.of(iterated(node.generators[0].iter))
            loaders = [v.node for v in values if v.kind == "loader" and isinstance(v.node, ast.Call)]
            if any(samples_by_rank(program, sampler_of(loader)) for loader in loaders):
                yield Mistake(node, _MESSAGE, "", advice=_ADVICE)


def _find_monitored(program: Program) -> Iterator[Mistake]:
    """Figures that Lightning logs on rank 0 alone, and by which a callback of all ranks decides."""
    watched = {
        value.value
        for call in program.names.calls
        if isinstance(value := keyword(call, "monitor"), ast.Constant) and isinstance(value.value, str)
    }
    for step in program.methods.get("log", []) if program.owner == "Lightning" else ():
        name = argument(step.node, 0, "name")
        alone = is_constant(keyword(step.node, "rank_zero_only"), True)
        if alone and isinstance(name, ast.Constant) and name.value in watched:
            message = f"rank 0 alone logs {name.value}, and a callback of all ranks decides by it"
            yield Mistake(step.node, message, "", advice="log it with sync_dist=True, and not on rank 0 only")


def _find_scheduled(program: Program) -> Iterator[Mistake]:
    """A ReduceLROnPlateau that each rank steps by a figure over its own share of the data."""
    for step in program.methods.get("step", []):
        call, made = step.node, [v.node for v in program.values.of(step.receiver)]
        plateau = [m for m in made if isinstance(m, ast.Call) and "Plateau" in ast.unparse(m.func)]
        given = argument(call, 0, "metrics")
        if given is None or not plateau or len(plateau) != len(made) or not program.ddp_steps:
            continue
        parts = list(origins(program, given))
        names = {ast.unparse(part) for part in parts if isinstance(part, ast.Name)}
        own = any(
            isinstance(binding.node, ast.For)
            and any(
                samples_by_rank(program, sampler_of(loader)) for loader in loaders_of(program, binding.node)
            )
            for part in parts
            if isinstance(part, ast.Name)
            for binding in program.values.reaching(part)
        )
        sent = any(
            isinstance(node, ast.Call)
            and _SHARED.search(ast.unparse(node.func))
            and any(ast.unparse(a) in names or node in parts for a in (*node.args, node))
            for node in program.names.calls
        )
        if own and not sent:
            message = (
                "each rank steps the scheduler by its own share of the data: their learning rates differ"
            )
            yield Mistake(call, message, "", advice="all_reduce the figure on all ranks first")
            return


def _find_prepared(program: Program) -> Iterator[Mistake]:
    """Counts over a loader that Accelerate has split, in a loop without gradients."""
    reported = set()
    for step in program.steps:
        if not isinstance(step.node, ast.For) or step.node in reported or not program.backwards:
            continue
        counted = _counted(program, step)
        is_split = program.values.kinds(iterated(step.node.iter)) == {"prepared"}
        withs = " ".join(ast.unparse(p.items[0]) for p in step.node.body if isinstance(p, ast.With))
        if counted is None or not is_split or not ("no_grad" in withs or without_gradients(program, step)):
            continue
        reported.add(step.node)
        advice = "gather what is counted: accelerator.gather_for_metrics((predictions, labels))"
        yield Mistake(counted, _MESSAGE, "", advice=advice)


def _counted(program: Program, step: Step) -> ast.AugAssign | ast.Assign | ast.Call | None:
    """What adds up a count, or keeps a figure, in a loop without gradients; None where there is none."""
    loop = step.node
    if not isinstance(loop, ast.For) or any(
        isinstance(n, ast.Attribute) and n.attr in ("backward", "zero_grad") for n in ast.walk(loop)
    ):
        return None
    for node in ast.walk(loop):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") in ("append", "add_batch")
            and (node.keywords or any(_FIGURE.search(ast.unparse(part)) for part in node.args))
        ):
            return node
        if (
            isinstance(node, ast.AugAssign)
            and isinstance(node.op, ast.Add)
            and not isinstance(node.value, ast.Constant)
        ):
            return node
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Subscript)
            and _FIGURE.search(f"{ast.unparse(node.targets[0].value)} {ast.unparse(node.value)}")
        ):
            return node  # `losses[i] = loss.item()`
    return None


RULE = Rule(
    title="a figure over sharded test data is never reduced over the ranks",
    why=(
        "A DistributedSampler gives each rank a share of the test set. Rank 0 prints the figure of its own "
        "share. Add up the counts with all_reduce, or test on all data on rank 0."
    ),
    find=_find,
)
