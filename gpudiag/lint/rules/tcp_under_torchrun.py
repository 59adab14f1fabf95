"""An address of one's own in a script that torchrun starts."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.vocabulary import INIT
from gpudiag.model.lint import Severity

_TCP = re.compile(r"tcp://([^:/'\"{]*)")


def _find(program: Program) -> Iterator[Mistake]:
    for step in program.calls(INIT):
        host = _host(program, step)
        if host is None or program.starts_processes or _is_branch(step):
            continue
        if _is_torchrun(program, step):
            fix = (
                ast.Call(
                    step.node.func,
                    step.node.args[:1],
                    [k for k in step.node.keywords if k.arg in ("backend", "timeout")],
                )
                if isinstance(step.node, ast.Call)
                else step.node
            )
            yield Mistake(
                step.node,
                "tcp:// under torchrun, which has opened its own store: the ranks wait for one another",
                with_replaced(program, step.node, ast.unparse(fix)),
            )
        elif host in ("localhost", "127.0.0.1", "::1") and not program.mentions("LOCAL_RANK", "device_count"):
            yield Mistake(
                step.node,
                f"{host} as rendezvous address works on one machine only",
                with_replaced(program, given, "'env://'")
                if (given := argument(step.node, 1, "init_method")) is not None
                else "",
                severity=Severity.NOTE,
            )


def _host(program: Program, step: Step) -> str | None:
    """The host of a `tcp://` address that is written in the script."""
    given = argument(step.node, 1, "init_method")
    texts = [given]
    if isinstance(given, ast.Name | ast.Attribute):
        texts = [v.node if isinstance(v.node, ast.expr) else None for v in program.values.of(given)]
    for text in texts:
        if isinstance(text, ast.Constant | ast.JoinedStr):
            found = _TCP.search(ast.unparse(text))
            if found:
                return found[1]
    return None


def _is_branch(step: Step) -> bool:
    """Whether it is the fallback for a start without a launcher."""
    return (
        any("__name__" not in ast.unparse(guard.test) for guard in step.where.guards) or step.where.handling
    )


def _is_torchrun(program: Program, step: Step) -> bool:
    """Whether the rank comes from the variables that torchrun sets, and from no argument or scheduler."""
    if program.mentions("torchrun", "torch\\.distributed\\.run"):
        return True
    rank = keyword(step.node, "rank")
    if rank is None:
        return program.mentions("LOCAL_RANK") and not program.mentions("SLURM_PROCID", "SLURM_NODEID")
    values = program.values.of(rank)
    made = [ast.unparse(value.node) for value in values if value.node is not None]
    return (
        bool(made)
        and all("environ" in text or "getenv" in text for text in made)
        and all("RANK" in text and "SLURM" not in text and "OMPI" not in text for text in made)
    )


RULE = Rule(
    title="a script that torchrun starts uses its own tcp:// address",
    why=(
        "torchrun opens the store itself and gives every rank its address; then no rank opens one at the "
        "script's address, and all wait. Under torchrun leave out init_method. An address of this machine "
        "alone (localhost) for several machines is a note."
    ),
    find=_find,
)
