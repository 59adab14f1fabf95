"""Slurm's own notation in the environment of a step: lists of nodes, tasks on each node, where a node is."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping

_SCONTROL_SECONDS = 5.0
_MAX_NODES = 100_000
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_nodes(text: str) -> tuple[str, ...]:
    """The nodes of a list such as `gpu[01-03,7],login`, in Slurm's order; empty for what is no such list.

    slurm.conf(5), "NODE CONFIGURATION", and scontrol(1), `show hostnames`.
    """
    nodes: list[str] = []
    for part in _split_outside_brackets(text):
        for node in _expand_one(part):
            nodes.append(node)
            if len(nodes) > _MAX_NODES:
                return ()
    return tuple(nodes)


def tasks_on_node(text: str, node: int) -> int | None:
    """How many tasks node number `node` of the step has, by a list such as `4(x2),1`; None if it does not say."""
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            return None
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return None


def node_address(node: str) -> str | None:
    """The address that Slurm reaches this node at, by `scontrol show node`; None where that does not tell one.

    For clusters whose nodes have no name that other programs could look up.
    """
    program = shutil.which("scontrol")
    if program is None:
        return None
    try:
        shown = subprocess.run(
            [program, "--oneliner", "show", "node", node],
            capture_output=True,
            text=True,
            timeout=_SCONTROL_SECONDS,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    fields = dict(word.partition("=")[::2] for word in shown.split())
    return fields.get("NodeAddr") or None


def outside_step(variables: Mapping[str, str]) -> int | None:
    """How many tasks the Slurm job has in whose batch script this process runs; None where it is no batch script."""
    batch = (
        "SLURM_JOB_ID" in variables and "SLURM_STEP_ID" not in variables and "SLURM_SUBMIT_DIR" in variables
    )
    tasks = variables.get("SLURM_NTASKS") or variables.get("SLURM_JOB_NUM_NODES") or ""
    return int(tasks) if batch and tasks.isdecimal() else None


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth, part = 0, ""
    for character in text.strip():
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield part
            part = ""
        else:
            part += character
    if part:
        yield part


def _expand_one(part: str) -> Iterator[str]:
    match = _BRACKETS.search(part)
    if match is None:
        yield part
        return
    head, tail = part[: match.start()], part[match.end() :]
    for piece in match[1].split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return
        for number in range(int(first), int(last if dash else first) + 1):
            for rest in _expand_one(tail):
                yield f"{head}{number:0{len(first)}d}{rest}"
