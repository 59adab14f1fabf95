"""A checkpoint of all ranks under a name that each rank makes by its own clock, or at random."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.origins import origins
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.vocabulary import CLOCKS, RANDOM_NAMES
from gpudiag.model.lint import Severity

_SAVES = ("torch.distributed.checkpoint.save", "torch.distributed.checkpoint.async_save")
# Hydra names its folder by the second, unless a file of the configuration has another pattern.
_HYDRA = "hydra.core.hydra_config.HydraConfig.get"
# Ranks that start in one minute agree on a name without seconds.
_COARSE = re.compile(r"%[YmdHMbBjy]")
_FINE = re.compile(r"%[SsfXcT]")
_ADVICE = "let rank 0 make the name, and send it to the others by broadcast_object_list"


def _find(program: Program) -> Iterator[Mistake]:
    if program.mentions(r"\w*broadcast\w*", "gather_object", "all_gather_object"):
        return
    reported = set()
    for step, path, severity in (*_saves(program), *_loads(program)):
        if path is None or step.node in reported or program.which_ranks(step) is not None:
            continue
        parts = list(origins(program, path))
        names = {part: program.names.qualify(part.func) for part in parts if isinstance(part, ast.Call)}
        clocks = [part for part, name in names.items() if name in CLOCKS | RANDOM_NAMES or name == _HYDRA]
        if not clocks:
            continue
        reported.add(step.node)
        formats = " ".join(p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str))
        is_fine = _FINE.search(formats) or not _COARSE.search(formats)
        is_certain = is_fine or any(names[clock] in RANDOM_NAMES for clock in clocks)
        if not is_certain or all(names[clock] == _HYDRA for clock in clocks):
            severity = Severity.NOTE
        line = program.line_at(clocks[0].lineno).number
        message = f"each rank makes the name of this checkpoint by itself (line {line})"
        result = (
            "only one rank finds it" if step in program.calls("torch.load") else "its parts go to several"
        )
        yield Mistake(step.node, f"{message}: {result}", "", advice=_ADVICE, severity=severity)


def _saves(program: Program) -> Iterator[tuple[Step, ast.expr | None, Severity | None]]:
    """The calls by which all ranks save parts of one checkpoint, with its name."""
    if program.owner == "Hugging Face's Trainer":
        for name, step in program.calls_within("transformers"):
            if name.endswith("TrainingArguments"):
                yield from _of_trainer(step)
    if program.owner:
        return
    for step in program.methods.get("save_state", []):
        if program.values.kinds(step.receiver) == {"accelerator"}:
            given = argument(step.node, 0, "output_dir")
            made = [v.node for v in program.values.of(step.receiver) if isinstance(v.node, ast.Call)]
            settings = [keyword(call, word) for call in made for word in ("project_config", "project_dir")]
            yield step, given or next((node for node in settings if node is not None), None), None
    for step in program.methods.get("save_checkpoint", []):
        if program.values.kinds(step.receiver) == {"engine"}:
            yield step, argument(step.node, 0, "save_dir"), None
            yield step, argument(step.node, 1, "tag"), None
    for step in program.calls(*_SAVES):
        yield step, argument(step.node, 99, "checkpoint_id"), None


def _of_trainer(step: Step) -> Iterator[tuple[Step, ast.expr | None, Severity | None]]:
    """The folder of a Trainer whose ranks all write into it, or all read the best checkpoint from it."""
    given = [node for word in ("fsdp", "deepspeed") if (node := keyword(step.node, word)) is not None]
    if any(isinstance(node, ast.Dict) or (isinstance(node, ast.Constant) and node.value) for node in given):
        yield step, argument(step.node, 0, "output_dir"), None
    elif any(not isinstance(node, ast.Constant) for node in given) or is_constant(
        keyword(step.node, "load_best_model_at_end"), True
    ):
        yield step, argument(step.node, 0, "output_dir"), Severity.NOTE


def _loads(program: Program) -> Iterator[tuple[Step, ast.expr | None, Severity | None]]:
    """The calls by which all ranks load what one rank has saved under a name of the same clock."""
    written = {
        part
        for step in program.calls("torch.save")
        if program.which_ranks(step) is Which.ONE and (path := argument(step.node, 1, "f")) is not None
        for part in origins(program, path)
        if isinstance(part, ast.Call) and program.names.qualify(part.func) in CLOCKS | RANDOM_NAMES
    }
    for step in program.calls("torch.load"):
        path = argument(step.node, 0, "f")
        if written and path is not None and written.intersection(origins(program, path)):
            yield step, path, None


RULE = Rule(
    title="each rank names a checkpoint of all ranks by its own clock",
    why=(
        "Each rank writes its part of such a checkpoint into the folder that it was given, or looks for rank "
        "0's there. Ranks do not read the clock in the same second, and no two draw the same uuid: the parts "
        "go to different folders, without an error, and no folder can be loaded."
    ),
    find=_find,
)
