"""Evidence for what happened to a rank: each fact with its unit and where it was read."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from gpudiag.linux.proc import Stat
from gpudiag.model.evidence import Evidence
from gpudiag.model.number_ranges import number_ranges
from gpudiag.ranks.diagnosis.dump import RankDump
from gpudiag.ranks.diagnosis.view import RaisedError, RankView

WAIT_STATUS = "wait status"
PROCESS_TABLE = "/proc/PID/stat"
SIDE_CHANNEL = "side channel"
EXCEPTION = "exception"
STACK = "stack of the main thread"
DEBUG_VARIABLE = "TORCH_DISTRIBUTED_DEBUG"

_STATE_WORDS = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep (waiting for a device or a file system)",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead",
    "F": "frozen by its control group",
}


def of_death(view: RankView) -> tuple[Evidence, ...]:
    """How a process ended: its signal or its exit status."""
    if view.exit is None:
        return ()
    if view.exit < 0:
        return (Evidence("signal", signal_name(-view.exit), source=WAIT_STATUS), *_of_torchs_debugging())
    return (Evidence("exit_status", view.exit, source=WAIT_STATUS),)


def _of_torchs_debugging() -> tuple[Evidence, ...]:
    """That torch compares every collective, which crashes some versions, and the version; else empty."""
    if os.environ.get(DEBUG_VARIABLE, "").upper() != "DETAIL":
        return ()
    with suppress(PackageNotFoundError):
        found = version("torch")
        return (
            Evidence(DEBUG_VARIABLE, "DETAIL", source="environment"),
            Evidence("torch_version", found, source="the agent's interpreter"),
        )
    return (Evidence(DEBUG_VARIABLE, "DETAIL", source="environment"),)


def of_lost_parent(exit_status: int | None) -> Evidence:
    """That the process that started the ranks ended before them, and how."""
    if exit_status is None:
        words = "ended"
    elif exit_status < 0:
        words = f"killed by {signal_name(-exit_status)}"
    else:
        words = f"exit status {exit_status}"
    return Evidence("parent_process", words, source=WAIT_STATUS)


def of_unknown_end() -> Evidence:
    """That a process is dead, and its parent, which would know how it ended, does not answer."""
    return Evidence("parent_process", "does not show how it ended", source=PROCESS_TABLE)


def of_agent_process(state: Stat | None) -> tuple[Evidence, ...]:
    """The state of the process of a rank's agent, on this machine, that does not report."""
    if state is None:
        return ()
    return (Evidence("agent_state", _STATE_WORDS.get(state.state, state.state), source=PROCESS_TABLE),)


def of_unseen_end() -> tuple[Evidence, ...]:
    """That a rank's process had been started, and ended before the launcher gave the run up."""
    words = "ended before the rendezvous; its launcher then ended the run"
    return (Evidence("process", words, source="the launcher's children"),)


def of_lost_agent() -> Evidence:
    """That a rank's agent is gone, and the rank with it: its end was seen, not its cause."""
    return Evidence(
        "agent", "ended without a message; its rank is killed with it", source="agents' connection"
    )


def of_stop(view: RankView) -> tuple[Evidence, ...]:
    """That a process is stopped, and for how long that has been seen."""
    words = _STATE_WORDS.get(view.process_state, view.process_state)
    facts = [
        Evidence("process_state", words, source=PROCESS_TABLE),
        Evidence("stopped_for", round(view.still_seconds, 2), unit="s", source=PROCESS_TABLE),
    ]
    if view.frozen_by is not None:
        facts.append(Evidence("frozen_by", view.frozen_by, source="/proc/PID/cgroup"))
    return tuple(facts)


def of_quota(view: RankView) -> tuple[Evidence, ...]:
    """How the control group's processor quota throttled the rank; empty if it is not what holds it back."""
    quota = view.quota
    if quota is None or not view.throttled:
        return ()
    source = f"{quota.group}/cpu.stat"
    return (
        Evidence("throttled_periods", quota.throttled_periods, limit=quota.periods, source=source),
        Evidence("throttled", round(quota.seconds, 2), unit="s", source=source),
    )


def of_exception(raised: RaisedError) -> tuple[Evidence, ...]:
    """The exception's type and message, and the line that raised it."""
    facts = [
        Evidence("exception", raised.type, source=EXCEPTION),
        Evidence("message", raised.message, source=EXCEPTION),
    ]
    if raised.place is not None:
        facts.append(Evidence("raised_at", raised.place, source="traceback"))
    return tuple(facts)


def of_silent_agent(view: RankView) -> tuple[Evidence, ...]:
    """For how long the rank's agent, which should report ten times a second, has not reported."""
    return (
        Evidence("agent_silent_for", round(view.silent_seconds, 2), unit="s", source="agents' connection"),
    )


def of_absence(waited_seconds: float) -> tuple[Evidence, ...]:
    """How long the others have waited for a rank that never came up."""
    return (Evidence("waited_for", round(waited_seconds, 1), unit="s", source="agents' connection"),)


def of_twins(twins: Sequence[str]) -> Evidence:
    """Which ranks were started twice, with their hosts."""
    return Evidence("started_twice", "; ".join(twins), source="agents' connection")


def of_silence(view: RankView, waiting: RankView) -> tuple[Evidence, ...]:
    """What the others wait in, and what the silent rank's process is doing."""
    facts = [Evidence("waited_in", _missed(view, waiting), source=SIDE_CHANNEL)]
    facts.append(Evidence("waited_in_stage", waiting.stage, source=SIDE_CHANNEL))
    waited_seconds = view.still_seconds if waiting.ended_well else waiting.still_seconds
    missed = waiting.position and waiting.position.stage_after(view.stage_count)
    if missed is not None and waiting.stage_count > view.stage_count:
        facts.append(Evidence("not_reached", f"stage {missed}", source=SIDE_CHANNEL))
    facts.append(Evidence("waited_for", round(waited_seconds, 2), unit="s", source=SIDE_CHANNEL))
    if view.process_state:
        words = _STATE_WORDS.get(view.process_state, view.process_state)
        facts.append(Evidence("process_state", words, source=PROCESS_TABLE))
    if view.wait_channel is not None:
        facts.append(Evidence("waits_in_kernel", view.wait_channel, source="/proc/PID/wchan"))
    facts.append(Evidence("cpu_time", round(view.cpu_seconds, 2), unit="s", source=PROCESS_TABLE))
    return (*facts, *of_quota(view))


def of_early_end(view: RankView, waiting: RankView) -> tuple[Evidence, ...]:
    """That a rank had returned its result while another one was still in an operation that needed it."""
    facts = [
        Evidence("ended_after", round(view.finished_at, 2), unit="s", source="the rank's result"),
        Evidence("waited_in", _where(waiting), source=SIDE_CHANNEL),
        Evidence("waiting_rank", waiting.rank, source=SIDE_CHANNEL),
    ]
    if view.exit is not None:
        facts.insert(0, Evidence("exit_status", view.exit, source=WAIT_STATUS))
    return tuple(facts)


def of_stall(view: RankView, ranks: Sequence[int]) -> tuple[Evidence, ...]:
    """The ranks inside a collective or a stage, and for how long none has moved."""
    return (
        Evidence("ranks_inside", number_ranges(ranks), source=SIDE_CHANNEL),
        Evidence("waited_for", round(view.still_seconds, 2), unit="s", source=SIDE_CHANNEL),
    )


def of_mismatch(
    sequence: int, entered: str, expected: str, expected_by: Sequence[RankView]
) -> tuple[Evidence, ...]:
    """What this rank entered, and what the others did at the same place in the sequence."""
    ranks = number_ranges([view.rank for view in expected_by])
    return (
        Evidence("operation", entered, source=SIDE_CHANNEL),
        Evidence("expected_operation", expected, source=f"side channel of ranks {ranks}"),
        Evidence("sequence", sequence, source=SIDE_CHANNEL),
    )


def of_consequences(views: Sequence[RankView]) -> tuple[Evidence, ...]:
    """How ranks ended as a consequence of the incident; empty if none did."""
    ends = [
        f"rank {view.rank}: {_how_it_ended(view)}"
        for view in views
        if not view.running and not view.ended_well
    ]
    return (Evidence("consequences", "; ".join(ends), source=WAIT_STATUS),) if ends else ()


def of_dump(dump: RankDump | None) -> tuple[Evidence, ...]:
    """The rank's stack, and its last collectives as torch recorded them; empty if it did not answer."""
    if dump is None:
        return ()
    facts = []
    if dump.stuck_at is not None:
        facts.append(Evidence("stuck_at", dump.stuck_at, source=STACK))
    if dump.stack:
        facts.append(Evidence("stack", "\n".join(dump.stack), source=STACK))
    if dump.flight_recorder:
        facts.append(
            Evidence("flight_recorder", "\n".join(dump.flight_recorder), source="torch's flight recorder")
        )
    return tuple(facts)


def of_position(view: RankView) -> tuple[Evidence, ...]:
    """Where the rank last announced that it was: collective, iteration, line of code."""
    facts = list(of_process(view))
    position = view.position
    if position is None:
        return tuple(facts)
    if position.operation is not None:
        facts.append(Evidence("sequence", position.operation.sequence, source=SIDE_CHANNEL))
        facts.append(Evidence("operation", position.operation.describe(), source=SIDE_CHANNEL))
        facts.append(Evidence("inside_operation", position.inside, source=SIDE_CHANNEL))
    return (*facts, *of_place(view))


def of_process(view: RankView) -> tuple[Evidence, ...]:
    """The rank's process."""
    return () if view.pid is None else (Evidence("pid", view.pid, source=PROCESS_TABLE),)


def of_place(view: RankView) -> tuple[Evidence, ...]:
    """The timed iteration, and the line of code that last announced something."""
    facts: list[Evidence] = []
    if view.position is not None and view.position.iteration is not None:
        facts.append(Evidence("iteration", view.position.iteration, source=SIDE_CHANNEL))
    if view.position is not None and view.position.place is not None:
        facts.append(Evidence("place", view.position.place, source=SIDE_CHANNEL))
    return tuple(facts)


def signal_name(number: int) -> str:
    """A signal's name, such as SIGKILL; a real-time signal has only its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _how_it_ended(view: RankView) -> str:
    if view.raised is not None:
        return f"{view.raised.type}: {view.raised.message.partition(chr(10))[0]}"
    if view.exit is None:
        return "exit status unknown"
    return signal_name(-view.exit) if view.exit < 0 else f"exit status {view.exit}"


def _missed(view: RankView, waiting: RankView) -> str:
    """The first collective that the rank has not entered, or if that is not known where `waiting` is."""
    operation = None if waiting.position is None else waiting.position.operation_at(view.entered)
    if operation is None or not waiting.inside or waiting.entered == view.entered + 1:
        return _where(waiting)
    return f"{operation.describe()} (collective {view.entered})"


def _where(view: RankView) -> str:
    if view.ended_well:
        return "the end of the run"
    position = view.position
    if position is not None and position.inside and position.operation is not None:
        return f"{position.operation.describe()} (collective {position.operation.sequence})"
    return f"stage {view.stage}"
