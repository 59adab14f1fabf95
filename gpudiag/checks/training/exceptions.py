"""Exceptions that ended ranks: equal ones reported once, with what is known of each and what to do."""

import re
from collections.abc import Sequence
from dataclasses import replace

from gpudiag.model.evidence import Evidence, RankSubject, about_ranks
from gpudiag.model.explanation import Role
from gpudiag.model.finding import Finding
from gpudiag.model.number_ranges import name_ranks
from gpudiag.reference.failures import Failure, failures

# What differs between ranks that end alike: pids, addresses, ports, names of shared memory.
_VARYING = re.compile(r"\bpid(\(s\))? [\d, ]+|0x[0-9a-f]+|/torch_[\d_]+|\]:\d+")

_LIKELIEST_FIRST = (Role.HARDWARE, Role.CAUSE, Role.SYMPTOM)

_SHARED_MEMORY = re.compile(
    r"out of shared memory|shared memory \(?shm|killed by signal: Bus error|/torch_\d+.*No space|"
    r"No space.*/torch_\d+"
    r"|unable to (allocate|open|write).*torch_",
    re.IGNORECASE | re.DOTALL,
)
_SHARED_MEMORY_REMEDY = (
    "Give the container more shared memory (`docker run --ipc=host` or `--shm-size 16g`; in Kubernetes an"
    " emptyDir of medium Memory at /dev/shm), or use fewer data loader workers; `df -h /dev/shm` shows it."
)
_OWN_REMEDY = "The error is in the script: look at that line, and at its inputs on that rank."
_BY_TEXT = (
    (_SHARED_MEMORY, _SHARED_MEMORY_REMEDY),
    (
        re.compile(r"Received data size|op\.preamble\.length|Detected mismatch between collectives"),
        (
            "Make every rank call the same collectives in the same order, with"
            " tensors of the same size and dtype."
        ),
    ),
    (
        re.compile(r"DataLoader worker .* (exited|is killed)", re.DOTALL),
        "The worker's own error is above it. Killed: look at `dmesg -T | tail -50` for the"
        " OOM killer, and try `num_workers=0`.",
    ),
    (
        re.compile(r"OutOfMemoryError|CUDA out of memory"),
        "Use a smaller batch, and check who else holds memory of that GPU: `gpudiag list`.",
    ),
    (
        re.compile(r"NCCL|ncclSystemError|ncclInternalError"),
        "Run `gpudiag nccl-test` with as many ranks, and read NCCL's own messages with NCCL_DEBUG=WARN.",
    ),
    (
        re.compile(r"CUDA|cuDNN|CUBLAS|cublas|AcceleratorError"),
        "Run `gpudiag list --sources all` on that host, and pass the script's output to `gpudiag explain`.",
    ),
    (
        re.compile(r"No space left on device|ENOSPC"),
        "Free some space where the script writes: `df -h` and `df -i` show which file system is full.",
    ),
    (
        re.compile(
            r"Connection (refused|reset|closed)|timed out|Timeout|DistNetworkError|DistStoreError|gloo"
        ),
        (
            "Check whether all ranks ran until then, and whether their hosts reach"
            " each other: `gpudiag nccl-test`."
        ),
    ),
)
_BY_TYPE = (
    (
        ("ModuleNotFoundError", "ImportError"),
        "Install it for the ranks' interpreter, or name your job's own with `--python`.",
    ),
    (
        ("FileNotFoundError", "PermissionError", "IsADirectoryError", "NotADirectoryError"),
        "Check that the path exists on that host, and that the job's user may open it.",
    ),
    (
        (
            "KeyError",
            "IndexError",
            "AttributeError",
            "NameError",
            "UnboundLocalError",
            "TypeError",
            "ZeroDivisionError",
            "AssertionError",
            "RecursionError",
            "NotImplementedError",
            "SyntaxError",
        ),
        _OWN_REMEDY,
    ),
    (("MemoryError",), "Check how much memory the job may use: `free -g`, and the limit of its cgroup."),
)


def join_alike(findings: Sequence[Finding], world_size: int) -> list[Finding]:
    """The findings, with one for all ranks that ended in the same way at the same place."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        rank = finding.subject.rank if isinstance(finding.subject, RankSubject) else None
        alike = _VARYING.sub("", finding.message.removeprefix(f"rank {rank} "))
        groups.setdefault((finding.code, alike), []).append(finding)
    return [_join(group, world_size) for group in groups.values()]


def _join(group: Sequence[Finding], world_size: int) -> Finding:
    first = group[0]
    subjects = [one.subject for one in group if isinstance(one.subject, RankSubject)]
    if len(subjects) < 2:
        return first
    ranks = [subject.rank for subject in subjects]
    named = f"all {world_size} ranks" if len(ranks) == world_size else name_ranks(ranks)
    alike = re.sub(r"^was ", "were ", first.message.removeprefix(f"rank {ranks[0]} "))
    facts = tuple(fact for fact in first.evidence if fact.name != "pid")
    return replace(
        first,
        subject=about_ranks(ranks, subjects[0].host),
        message=f"{named} {alike}",
        evidence=(*facts, Evidence("ranks", name_ranks(ranks), source="ranks")),
    )


def find_meaning(exception: str, text: str, frames: Sequence[str] = ()) -> Failure | None:
    """The known failure that shows as this exception with this text, in those frames; None for none.

    Failures that only repeat another one, or are generic, are not the meaning of an exception.
    """
    lines = [f"{exception}: {text.partition(chr(10))[0]}", *text.splitlines()[1:]]
    raised = "\n".join(frames)
    found = [
        failure
        for failure in failures().values()
        if not failure.generic and any(_shows(failure, line, raised) for line in lines)
    ]
    return min(found, key=lambda failure: _LIKELIEST_FIRST.index(failure.role), default=None)


def with_meaning(finding: Finding, meaning: Failure) -> Finding:
    """The finding with what its exception is known to mean, who must act, and how to fix it."""
    fact = Evidence("meaning", f"{meaning.title}: {meaning.cause}", source=f"gpudiag explain {meaning.id}")
    return replace(finding, evidence=(*finding.evidence, fact), owner=meaning.owner).with_remedy(
        meaning.remedy
    )


def _shows(failure: Failure, line: str, frames: str) -> bool:
    return any(
        pattern.search(line) is not None and pattern.is_raised_by(frames) for pattern in failure.patterns
    )


def advise(exception: str, text: str) -> str:
    """What to do about an exception of that type with that text, or about that line of output."""
    for types, remedy in _BY_TYPE:
        if exception in types:
            return remedy
    whole = f"{exception}: {text}"
    return next((remedy for pattern, remedy in _BY_TEXT if pattern.search(whole)), _OWN_REMEDY)


def is_about_shared_memory(text: str) -> bool:
    """Whether an exception's text is what a data loader raises when /dev/shm is full."""
    return bool(_SHARED_MEMORY.search(text))
