"""The machine and its state as nouns, from what the host probes' children sent before their deadline."""

import os
from collections.abc import Mapping

from gpudiag.model.codec import all_missing, join_sheets, read_sheet
from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.host import Machine
from gpudiag.model.host_state import HostState
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild
from gpudiag.probe.visibility import read_allocation

# --- the machine

SOURCE = "host"


def machine_of(child: GuardedChild, environment: Mapping[str, str]) -> tuple[Machine, SourceStatus]:
    """The machine that an ended child of `host.machine.stream_machine` describes, and the source's status."""
    allocation = read_allocation(environment)
    document = next((facts for kind, facts in child.messages if kind == "machine"), None)
    if document is not None:
        named = {"hostname": document.get("hostname") or os.uname().nodename, "allocation": allocation}
        status = SourceStatus(SOURCE, SourceState.OK, seconds=child.seconds)
        return read_sheet(Machine, {**document, **named}), status
    late = child.ending == "timed_out"
    words = f"no answer within {child.seconds:.1f} s" if late else child.detail
    why = Missing(MissingReason.TIMED_OUT if late else MissingReason.ERROR, words)
    hostname = os.uname().nodename
    machine = all_missing(Machine, why, hostname=hostname, container=None, allocation=allocation)
    state = SourceState.TIMED_OUT if late else SourceState.FAILED
    return machine, SourceStatus(SOURCE, state, f"the machine's files: {words}", child.seconds)


# --- its state


def host_state_of(child: GuardedChild | None) -> Reading[HostState]:
    """What an ended child of `host.state.stream_host_state` read; NOT_ASKED where `child` is None."""
    if child is None:
        return NOT_ASKED
    topics = [sheet for kind, sheet in child.messages if kind == "topic"]
    return read_sheet(HostState, join_sheets(*topics), _why_not(child)) if topics else _why_not(child)


def _why_not(child: GuardedChild) -> Missing:
    if child.ending == "timed_out":
        return Missing(MissingReason.TIMED_OUT, f"no answer within {child.seconds:.1f} s")
    return Missing(MissingReason.ERROR, child.detail)
