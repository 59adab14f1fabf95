"""A rendezvous on localhost for several machines, each of which finds only itself there."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.launches import LOOPBACK, Launch, LaunchScript, read_launches
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.reader import Line
from gpudiag.lint.rule import Rule
from gpudiag.lint.rules.launch_module import commands_of
from gpudiag.model.lint import Severity


def _find(program: Program) -> Iterator[Mistake]:
    for step, text in commands_of(program):
        script = read_launches([Line(text, 1)])
        for launch in script.launches:
            found = _judge(script, launch)
            if found is not None:
                message, fix, severity = found
                yield Mistake(
                    step.node,
                    message,
                    "",
                    severity=severity,
                    advice=f"give all machines the name of the first one: {fix}",
                )


def find_commands(lines: tuple[Line, ...], *, run: bool, editable: bool) -> Iterator[Mistake]:
    """The launches of a script that name localhost for several machines; what a page only shows is a note."""
    script = read_launches(lines)
    for launch in script.launches:
        found = _judge(script, launch)
        if found is not None:
            message, fix, severity = found
            line = next((launch.places[n] for n in _ENDPOINTS if n in launch.places), launch.line)
            yield Mistake(
                ast.Pass(),
                message,
                "",
                severity=severity if run else Severity.NOTE,
                line=line,
                advice=f"give all machines the name of the first one: {fix}",
            )
    yield from _find_address(script, run=run)


_ENDPOINTS = ("rdzv-endpoint", "master-addr")
# An option or variable that names the place, or one that may hold such an option.
_MEETING_PLACE = re.compile(r"(?:rdzv|master)[-_](?:endpoint|addr\b)|PET_|ARGS|OPT|LAUNCH|CONFIG")
_FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def _judge(script: LaunchScript, launch: Launch) -> tuple[str, str, Severity | None] | None:
    nodes = script.number(launch.options.get("nnodes"))
    if nodes is None or nodes < 2:
        return None
    if "standalone" in launch.places or not ("$" in launch.places or _MEETING_PLACE.search(script.text)):
        option = (
            "--standalone means" if "standalone" in launch.places else "without an endpoint torchrun means"
        )
        return (
            f"{nodes} machines are to meet, and {option} localhost, where each finds only itself",
            "--rdzv-backend=c10d --rdzv-endpoint=HOST:29500",
            None,
        )
    for name in _ENDPOINTS:
        given = launch.options.get(name)
        if given is None:
            continue
        host, _, port = given.partition(":") if not given.startswith("[") else given.partition("]:")
        held = script.value(host)
        fix = f"--{name}=HOST{':' + port if port else ''}"
        if held is not None and held.split(":")[0] in LOOPBACK:
            return (
                f"{nodes} machines are to meet on {held.split(':')[0]}, where each finds only itself",
                fix,
                None,
            )
        fallback = _fallback(script, host)
        if fallback is not None:
            return (
                f"{nodes} machines meet on localhost where {fallback} cannot be had: each then waits alone",
                fix,
                Severity.NOTE,
            )
    return None


def _fallback(script: LaunchScript, host: str) -> str | None:
    """The endpoint's variable that is localhost where the right value is missing; None if there is none."""
    name = host.strip("${}").split(":")[0]
    text, _ = script.variables.get(name, ("", None))
    return f"${name}" if "echo localhost" in text or "echo 127.0.0.1" in text else None


def _find_address(script: LaunchScript, *, run: bool) -> Iterator[Mistake]:
    """`export MASTER_ADDR=localhost` in a batch script for several machines."""
    nodes = script.number(script.directives.get("nodes"))
    text, line = script.variables.get("MASTER_ADDR", ("", None))
    if nodes is None or nodes < 2 or line is None or text.strip("\"'") not in LOOPBACK:
        return
    if any(name in launch.options for launch in script.launches for name in _ENDPOINTS):
        return
    yield Mistake(
        ast.Pass(),
        f"MASTER_ADDR is {text.strip(chr(34))} for {nodes} machines: each finds only itself there",
        f"export MASTER_ADDR={_FIRST}",
        severity=None if run else Severity.NOTE,
        line=line,
    )


# Source: torchrun's documentation; a report of a Slurm script (pith-train#91).
RULE = Rule(
    title="several machines are to meet on localhost",
    why=(
        "localhost is another machine on each machine. Every launcher opens its own rendezvous, waits for "
        "the others there, and ends with a timeout. Name the first machine: under Slurm, the first of "
        "`scontrol show hostnames`. Without an endpoint, and with --standalone, torchrun means localhost; it "
        "does not read MASTER_ADDR."
    ),
    find=_find,
    find_commands=find_commands,
)
