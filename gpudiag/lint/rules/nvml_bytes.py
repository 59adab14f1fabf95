"""Names from NVML that are decoded though they are text, and an NVML that is never shut down."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import at_end, with_replaced
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.model.lint import Severity

_TEXTS = frozenset(
    """
    nvmlDeviceGetName nvmlSystemGetDriverVersion nvmlDeviceGetUUID nvmlSystemGetNVMLVersion
    nvmlDeviceGetSerial nvmlDeviceGetVbiosVersion nvmlDeviceGetPciInfo
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    packages = ("pynvml", "py3nvml", "py3nvml.py3nvml")
    if not program.mentions("isinstance", "hasattr", "bytes") and not any(
        isinstance(n, ast.Try) for n in program.nodes
    ):
        for step in program.methods.get("decode", []):
            call = step.node
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            makers = _makers(program, call.func.value)
            if any(
                (program.names.qualify(m.func) or "").rsplit(".", 1)[-1] in _TEXTS for m in makers
            ) and any((program.names.qualify(m.func) or "").startswith(packages) for m in makers):
                edits = program.edit(call, ast.unparse(call.func.value))
                yield Mistake(
                    call,
                    "NVML's names are text today: decode raises an AttributeError",
                    program.edited_line(edits)
                    if edits
                    else with_replaced(program, call, ast.unparse(call.func.value)),
                    edits,
                )
    started = [step for package in packages for step in program.calls(f"{package}.nvmlInit")]
    if (
        started
        and program.script.whole
        and not program.mentions("nvmlShutdown", "shutdown")
        and started[0].where.entry is None
    ):
        yield Mistake(
            started[0].node,
            "NVML is started and never shut down",
            f"{ast.unparse(started[0].node.func).rpartition('.')[0] or 'pynvml'}.nvmlShutdown()"
            if isinstance(started[0].node, ast.Call)
            else "",
            severity=Severity.NOTE,
            place=at_end(program, started[0].node),
        )


def _makers(program: Program, node: ast.expr) -> list[ast.Call]:
    if isinstance(node, ast.Call):
        return [node]
    if isinstance(node, ast.Name):
        return [
            b.value for b in program.values.reaching(node) if isinstance(b.value, ast.Call) and not b.path
        ]
    return []


RULE = Rule(
    title="a name from NVML is decoded, though it is text",
    why=(
        "Old versions of pynvml returned bytes; nvidia-ml-py gives str since 11.515, which has no decode. "
        "An NVML that is never shut down is a note."
    ),
    find=_find,
    fixes=True,
)
