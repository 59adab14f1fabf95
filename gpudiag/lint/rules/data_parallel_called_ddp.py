"""DataParallel under the name of DDP."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import DATA_PARALLEL

_DDP_WORD = re.compile(r"(?:^|_)ddp(?:_|$)|distributed_?data_?parallel|^DDP|DDP$", re.IGNORECASE)


def _find(program: Program) -> Iterator[Mistake]:
    for node in program.nodes:
        if isinstance(node, ast.ImportFrom) and node.module in ("torch.nn", "torch.nn.parallel"):
            for name in node.names:
                if name.name == "DataParallel" and name.asname and _DDP_WORD.search(name.asname):
                    yield _mistake(
                        node,
                        name.asname,
                        f"from torch.nn.parallel import DistributedDataParallel as {name.asname}",
                    )
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            called = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            if not _DDP_WORD.search(called):
                continue
            if program.names.qualify(node.value) == DATA_PARALLEL:
                yield _mistake(
                    node, called, f"{ast.unparse(target)} = torch.nn.parallel.DistributedDataParallel"
                )
            elif isinstance(node.value, ast.Call) and program.names.qualify(node.value.func) == DATA_PARALLEL:
                model = ast.unparse(node.value.args[0]) if node.value.args else "model"
                yield _mistake(
                    node,
                    called,
                    f"{ast.unparse(target)} = DistributedDataParallel({model}, device_ids=[local_rank])",
                )


def _mistake(node: ast.AST, called: str, fix: str) -> Mistake:
    return Mistake(node, f"{called} is DataParallel, and not DDP", fix)


RULE = Rule(
    title="DataParallel is called DDP",
    why=(
        "DataParallel splits each batch over the GPUs of one process and never communicates with another "
        "process: with several processes each trains its own model. DistributedDataParallel averages "
        "gradients."
    ),
    find=_find,
)
