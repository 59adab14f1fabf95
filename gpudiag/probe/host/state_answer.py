"""The host's state as a noun, from what the guarded child sent before its deadline."""

from gpudiag.model.codec import join_sheets, read_sheet
from gpudiag.model.host_state import HostState
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild


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
