"""What checks of the host share: its state, and findings about it."""

from gpudiag.checks.allocation import granted
from gpudiag.checks.registry import FindingKind
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.host_state import HostState, ProcessorLayout
from gpudiag.model.reading import Missing


def host_state(context: Context) -> HostState:
    """The host's state; the need `host_state` makes sure that it is there."""
    state = context.snapshot.machine.state
    assert not isinstance(state, Missing)  # noqa: S101 - the runner answers for the need
    return state


def host_finding(context: Context, kind: FindingKind, message: str, *evidence: Evidence) -> Finding:
    """A finding of that kind about this machine."""
    return kind.finding(HostSubject(context.snapshot.host), message, *evidence)


def usable_gpus(context: Context) -> int:
    """How many GPUs the job has: what it was given, or all that the driver lists."""
    here = len(context.snapshot.devices)
    grant = granted(context.snapshot.machine.allocation)
    return here if grant is None else min(here, grant[1])


def is_virtual(state: HostState) -> bool:
    """Whether a hypervisor runs this machine: it hides clocks, bridges and governors."""
    layout = state.processor_layout
    return isinstance(layout, ProcessorLayout) and layout.virtual_machine


def parse_processor_list(text: str) -> frozenset[int]:
    """The processors that a kernel list such as `0-3,8` names."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(
        number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)
    )
