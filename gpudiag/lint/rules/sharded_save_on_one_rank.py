"""A sharded checkpoint, which needs all ranks, taken on one."""

import ast
from collections.abc import Iterator
from dataclasses import replace

from gpudiag.lint.corrections import moved, out_of
from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.vocabulary import FSDP1, FULLY_SHARD
from gpudiag.model.lint import Severity

_STATES = """
    get_state_dict get_model_state_dict get_optimizer_state_dict
    set_state_dict set_model_state_dict set_optimizer_state_dict
    """.split()
_OF_FSDP1 = """
    summon_full_params optim_state_dict full_optim_state_dict sharded_optim_state_dict
    scatter_full_optim_state_dict
    """.split()
_CHECKPOINT = (
    *(f"torch.distributed.checkpoint.{name}" for name in ("save", "async_save", "load")),
    *(f"torch.distributed.checkpoint.state_dict.{name}" for name in _STATES),
    *(f"{FSDP1}.{name}" for name in _OF_FSDP1),
    "deepspeed.zero.GatheredParameters",
)
_ACCELERATE = ("save_state", "load_state", "get_state_dict")
_ENGINE = ("save_checkpoint", "load_checkpoint", "save_16bit_model")


def _find(program: Program) -> Iterator[Mistake]:
    reported = set()
    for what, step in _needing_all(program):
        if step.node in reported or program.which_ranks(step) is not Which.ONE or step.where.handling:
            continue
        if any("world_size" in ast.unparse(guard.test) for guard in step.where.guards):
            continue
        reported.add(step.node)
        place = next((p for g in step.where.guards if (p := out_of(program, step.node, g)) is not None), None)
        found = moved(
            program,
            step.node,
            f"{what} needs every rank, and only one calls it",
            place,
            "let every rank call it; only the writing of a file is for one",
        )
        # A configuration, which may be no part of the script, decides whether the model is sharded.
        is_shown = not what.startswith("accelerator.") and (what != "save_model" or _is_sharded(program))
        yield found if is_shown else replace(found, severity=Severity.NOTE)


def _needing_all(program: Program) -> Iterator[tuple[str, Step]]:
    for name in _ACCELERATE:
        for step in program.methods.get(name, []):
            if program.values.kinds(step.receiver) == {"accelerator"}:
                yield f"accelerator.{name}", step
    for name in _ENGINE:
        for step in program.methods.get(name, []):
            if program.values.kinds(step.receiver) == {"engine"}:
                yield f"the engine's {name}", step
    if program.owner == "Hugging Face's Trainer" and program.mentions(r"\w*(?:fsdp|FSDP|deepspeed|zero3)\w*"):
        for step in program.methods.get("save_model", []):
            yield "save_model", step
    for name in _CHECKPOINT:
        for step in program.calls(name):
            yield name.rsplit(".", 1)[1], step
    sharded = {
        ast.unparse(given)
        for step in program.calls(FULLY_SHARD)
        if (given := argument(step.node, 0, "module")) is not None
    }
    for method in ("state_dict", "load_state_dict"):
        for step in program.methods.get(method, []):
            if program.values.kinds(step.receiver) == {"fsdp1"} and not any(
                "LOCAL_STATE_DICT" in ast.unparse(w) for w in step.where.withs
            ):
                yield f"the {method} of an FSDP model", step
    if sharded:
        for step in program.methods.get("full_tensor", []):
            yield "full_tensor()", step


def _is_sharded(program: Program) -> bool:
    """Whether the script itself gives the Trainer's arguments a way to shard the model."""
    return any(
        isinstance(given, ast.Dict) or (isinstance(given, ast.Constant) and given.value)
        for name, step in program.calls_within("transformers")
        if name.endswith("TrainingArguments")
        for given in (keyword(step.node, "fsdp"), keyword(step.node, "deepspeed"))
    )


RULE = Rule(
    title="a sharded model is saved or loaded on one rank",
    why=(
        "Each rank has only its shard. Assembling a checkpoint is a collective, so rank 0 alone waits "
        "forever. Let all ranks call it; put only the writing of the file under `if rank == 0`."
    ),
    find=_find,
)
