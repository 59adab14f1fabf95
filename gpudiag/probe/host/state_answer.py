"""The host's state as a noun, from what the guarded child sent before its deadline."""

from collections.abc import Mapping
from typing import Any

from gpudiag.model.host_state import (
    CgroupLimits,
    ClockState,
    FabricManager,
    Filesystem,
    HostMemoryErrors,
    HostState,
    InfinibandPort,
    IommuState,
    NumaNode,
    ProcessLimits,
    ProcessorLayout,
    Settings,
)
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild
from gpudiag.probe.nouns import noun_of, reading_of

_NOUNS = {
    "process_limits": ProcessLimits,
    "cgroup": CgroupLimits,
    "processor_layout": ProcessorLayout,
    "clock": ClockState,
    "memory_errors": HostMemoryErrors,
    "iommu": IommuState,
    "fabric_manager": FabricManager,
    "settings": Settings,
}
_LISTS = {"filesystems": Filesystem, "infiniband_ports": InfinibandPort}
_TUPLES = ("redirecting_bridges", "name_addresses")


def host_state_of(child: GuardedChild | None) -> Reading[HostState]:
    """What an ended child of `host_state.stream_host_state` read; None: the host's state was not asked."""
    if child is None:
        return NOT_ASKED
    documents = {name: document for kind, name, document in child.messages if kind == "topic"}
    if not documents:
        return _why_not(child)
    values = {
        name: _topic(name, documents[name]) if name in documents else _why_not(child)
        for name in HostState.__dataclass_fields__
    }
    return HostState(**values)


def _why_not(child: GuardedChild) -> Missing:
    if child.ending == "timed_out":
        return Missing(MissingReason.TIMED_OUT, f"no answer within {child.seconds:.1f} s")
    return Missing(MissingReason.ERROR, child.detail)


def _topic(name: str, document: Mapping[str, Any]) -> Any:
    value = reading_of(document, name)
    if isinstance(value, Missing):
        return value
    if name in _LISTS:
        return tuple(noun_of(_LISTS[name], one) for one in value)
    if name in _NOUNS:
        return noun_of(_NOUNS[name], value, **_given(value))
    return tuple(value) if name in _TUPLES else value


def _given(document: Mapping[str, Any]) -> dict[str, Any]:
    """The members that are lists in a document and tuples in the noun."""
    given: dict[str, Any] = {
        name: tuple(document[name])
        for name in ("governors", "sources_available", "kinds")
        if name in document
    }
    if "numa_nodes" in document:
        given["numa_nodes"] = tuple(noun_of(NumaNode, node) for node in document["numa_nodes"])
    return given
