"""BatchNorm whose statistics each rank keeps for itself."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule
from gpudiag.model.lint import Severity

_MODELS = re.compile(
    r"torchvision\.models\.(?:resnet|resnext|wide_resnet|densenet|mobilenet|efficientnet_b|regnet|shufflenet|"
    r"mnasnet|googlenet|inception|vgg\d+_bn)"
)


def has_batch_norm(program: Program) -> bool:
    """Whether a model of this script surely has BatchNorm."""
    if program.mentions("SyncBatchNorm", "convert_sync_batchnorm", "FrozenBatchNorm2d"):
        return False
    return any(re.fullmatch(r"BatchNorm[123]d", name) for name, _ in program.calls_within("torch.nn")) or any(
        _MODELS.match(f"torchvision.models.{name}") for name, _ in program.calls_within("torchvision.models")
    )


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or not has_batch_norm(program):
        return
    for step in program.ddp_steps:
        message = "the model has BatchNorm, and each rank normalises by its own batch"
        inner = argument(step.node, 0, "module")
        if inner is None:
            yield Mistake(
                step.node, message, "", advice="convert the model by SyncBatchNorm.convert_sync_batchnorm"
            )
        else:
            converted = f"torch.nn.SyncBatchNorm.convert_sync_batchnorm({ast.unparse(inner)})"
            yield Mistake(step.node, message, with_replaced(program, inner, converted))
        return


RULE = Rule(
    severity=Severity.NOTE,
    title="BatchNorm is not synchronised",
    why=(
        "DDP averages gradients, not the statistics of BatchNorm: each rank normalises by its own batch, "
        "and only rank 0's running means are saved. That is fine with large batches on each rank, and bad "
        "with small ones."
    ),
    find=_find,
)
