"""The machine as a noun, from what the host probe's child sent."""

import os
from collections.abc import Mapping

from gpudiag.model.codec import all_missing, read_sheet
from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.guard import GuardedChild
from gpudiag.probe.visibility import read_allocation

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
