"""What checks of the host share: its state, and findings about it."""

from typing import TYPE_CHECKING

from gpudiag.checks.gpu.availability import granted
from gpudiag.checks.registry import FindingKind
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding, Owner
from gpudiag.model.reading import Missing

if TYPE_CHECKING:  # a listing loads checks that use these, and no host's state
    from gpudiag.model.host_state import HostState


def host_state(context: Context) -> "HostState":
    """The host's state; the need `host_state` makes sure that it is there."""
    state = context.snapshot.machine.state
    assert not isinstance(state, Missing)  # noqa: S101 - the runner answers for the need
    return state


def host_finding(
    context: Context, kind: FindingKind, message: str, *evidence: Evidence, owner: Owner | None = None
) -> Finding:
    """A finding of that kind about this machine; `owner` replaces the catalogue's."""
    return kind.finding(HostSubject(context.snapshot.host), message, *evidence, owner=owner)


def usable_gpus(context: Context) -> int:
    """How many GPUs the job has: what it was given, or all that the driver lists."""
    here = len(context.snapshot.devices)
    grant = granted(context.snapshot.machine.allocation)
    return here if grant is None else min(here, grant[1])


def is_virtual(state: "HostState") -> bool:
    """Whether a hypervisor runs this machine: it hides clocks, bridges and governors."""
    layout = state.processor_layout
    return not isinstance(layout, Missing) and layout.virtual_machine
