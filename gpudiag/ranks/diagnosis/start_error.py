"""Why ranks could not be started: a caller's mistake is an exception, anything else an incident."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpudiag.errors import LaunchError, UsageError
from gpudiag.installed import install_command, repair_command
from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.number_ranges import number_ranges
from gpudiag.ranks.diagnosis.evidence import WAIT_STATUS, of_exception, signal_name
from gpudiag.ranks.diagnosis.view import RaisedError, RankView
from gpudiag.ranks.stages import IMPORT

_TEMPLATE = "the process that starts ranks"
_OWN_KINDS: Mapping[str, IncidentKind] = MappingProxyType(
    {"failed": IncidentKind.RAISED, "ended": IncidentKind.DIED}
)


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A template's last message (absent, failed, old_python, not_forked), or that it `ended` or is `slow`."""

    kind: str
    facts: dict[str, Any]

    @property
    def is_mistake(self) -> bool:
        """Whether the caller named an interpreter that cannot run ranks."""
        return self.kind in ("absent", "old_python")


@dataclass(frozen=True, slots=True)
class FailedStart:
    """Which ranks could not be started, where, why, and what the process that starts them wrote."""

    ranks: tuple[int, ...]
    host: str
    failure: StartFailure
    stderr: str


def start_error(failure: StartFailure) -> UsageError:
    """The exception for an interpreter that cannot run ranks."""
    facts = failure.facts
    if failure.kind == "absent":
        return absent_module(facts["module"], facts["python"])
    return UsageError(
        f"ranks need Python 3.10 or later, and this one is {facts['version']}",
        hint="name another interpreter with --python",
    )


def start_incident(failure: StartFailure, view: RankView, stderr: str, ranks: Sequence[int]) -> Incident:
    """Why the template, which wrote `stderr`, could not start these ranks; a launcher's dies or raises."""
    facts = failure.facts
    exit_status = facts.get("exit")
    own = len(ranks) == 1
    shown: list[Evidence] = []
    if failure.kind == "failed":
        error = facts["error"]
        shown += [
            Evidence("importing", facts["module"], source=_TEMPLATE),
            *of_exception(RaisedError(error["type"], error["message"], error["place"], view.seen_at)),
        ]
    elif failure.kind == "ended":
        name = "signal" if exit_status is not None and exit_status < 0 else "exit_status"
        if exit_status is not None:
            value = signal_name(-exit_status) if exit_status < 0 else exit_status
            shown.append(Evidence(name, value, source=WAIT_STATUS))
    elif failure.kind == "slow":
        shown.append(Evidence("waited_for", facts["seconds"], unit="s", source=_TEMPLATE))
        shown.append(Evidence("importing", facts["module"], source=_TEMPLATE))
    else:
        shown.append(Evidence("not_forked", str(facts["reason"]), source=_TEMPLATE))
        own, ranks = True, (facts["rank"],)
    if stderr:
        shown.append(Evidence("stderr", stderr, source="standard error of the process that starts ranks"))
    if not own:
        shown.append(Evidence("ranks", number_ranges(ranks), source=_TEMPLATE))
    kind = _OWN_KINDS.get(failure.kind, IncidentKind.START_FAILED) if own else IncidentKind.START_FAILED
    return Incident(kind, ranks[0], view.host, IMPORT, max(0.0, view.seen_at), tuple(shown))


def absent_module(name: str, python: str | None = None) -> UsageError:
    """The exception for a module that ranks need and that the interpreter does not have; None is this one."""
    if python is not None:
        return UsageError(
            f"{name} is not installed for {python}, and ranks need it",
            hint=repair_command(name, python=python),
        )
    hint = install_command("torch") if name == "torch" else repair_command(name)
    return UsageError(f"{name} is not installed, and ranks need it", hint=hint)


def describe_twins(rank: int, host: str, other_host: str) -> str:
    """Two processes that have the same rank, in words."""
    return f"rank {rank} on {host} and on {other_host}"


def verdict_lost() -> LaunchError:
    """The exception for a run that the leading agent has judged, where its verdict did not arrive."""
    return LaunchError(
        "the run has ended, and its report did not reach this host",
        hint="read it where rank 0 printed it, or in its folder of reports",
    )


def started_twice(rank: int, why: str = "") -> UsageError:
    """The exception for two processes with the same rank in one run; `why` is its leader's reason."""
    return UsageError(
        why or f"rank {rank} was started twice in this run",
        hint="give every process its own RANK, or let the launcher do so; two jobs need two MASTER_PORTs",
    )


def slow_start(limit_seconds: float, preload: Sequence[str]) -> StartFailure:
    """The failure of an import that does not end within its limit."""
    return StartFailure("slow", {"seconds": limit_seconds, "module": preload[0] if preload else "the entry"})
