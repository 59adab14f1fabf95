"""Data that each rank orders, or splits, by a seed of its own, before the ranks share it out."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import runs_beside, shuffles
from gpudiag.lint.values import RANKS
from gpudiag.lint.vocabulary import SAMPLER

_BY_RANK = RANKS | {"rank_text", "local_rank_text"}
_DRAWS = ("numpy.random.permutation", "torch.randperm")  # the rest change what they are given
_SPLITS = ("torch.utils.data.random_split", "random.shuffle", "numpy.random.shuffle", *_DRAWS)
_ADVICE = (
    "draw it by a generator that has the same seed on every rank, such as torch.Generator().manual_seed(0)"
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner:
        return
    for step in program.calls(SAMPLER):
        call, seed = step.node, argument(step.node, 4, "seed")
        if isinstance(call, ast.Call) and shuffles(call) and program.values.depends_on(seed, _BY_RANK):
            message = "each rank shuffles by a seed of its own: samples are read twice, and others never"
            yield Mistake(call, message, "", advice="give the samplers of all ranks one seed")
            return
    seeded = "by no seed" if not program.mentions(r"\w*seed\w*") else ""
    for step in program.steps:
        call = step.node
        if not isinstance(call, ast.Call) or any("seed" in getattr(f, "name", "") for f in step.where.stack):
            continue  # what a function that seeds does inside follows from what it is given
        if "seed" in ast.unparse(call.func).lower():
            by_rank = program.values.depends_on(call, _BY_RANK)
            differs = by_rank or is_constant(keyword(call, "device_specific"), True)
            seeded = "by a seed of its own" if differs else ""
        elif seeded and program.names.qualify(call.func) in _SPLITS and _is_shared(program, step):
            what = "splits the data set" if "split" in ast.unparse(call.func) else "orders the data"
            yield Mistake(
                call,
                f"each rank {what} {seeded}, and the ranks then share out different data",
                "",
                advice=_ADVICE,
            )
            return


def _is_shared(program: Program, step: Step) -> bool:
    """Whether the ranks take parts of what is drawn: by a sampler, Accelerate, or a slice by rank."""
    call = step.node
    if not isinstance(call, ast.Call) or not (
        runs_beside(program, step, program.opens_group) or program.uses_accelerate
    ):
        return False
    if keyword(call, "generator") or program.which_ranks(step) is not None:
        return False
    if "split" in ast.unparse(call.func):
        return bool(program.calls(SAMPLER)) or program.uses_accelerate
    statement = program.names.statement_of(call)
    drawn = statement.targets[0] if isinstance(statement, ast.Assign) else None
    ordered = drawn if program.names.qualify(call.func) in _DRAWS else argument(call, 0, "x")
    return ordered is not None and any(
        isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == ast.unparse(ordered)
        and program.names.function_around(node) is program.names.function_around(call)
        and program.names.order[node] > program.names.order[call]
        and program.values.depends_on(node.slice, _BY_RANK)
        for node in program.nodes
    )


RULE = Rule(
    title="each rank orders or splits the data by a seed of its own",
    why=(
        "A DistributedSampler, or a slice by rank, takes every world_size-th item of one order. Where each rank has "
        "another order, ranks read the same samples and leave out others; after a split, each tests on what another "
        "one has trained on. A seed per rank is for augmentations: set it afterwards."
    ),
    find=_find,
)
