"""The machine as a noun, from what the host probe's child sent."""

import os
from collections.abc import Mapping
from typing import Any

from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.host import Container, Machine, NetworkInterface, PciDevice
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild
from gpudiag.probe.nouns import all_missing, noun_of, reading_of
from gpudiag.probe.visibility import read_allocation

SOURCE = "host"


def machine_of(child: GuardedChild, environment: Mapping[str, str]) -> tuple[Machine, SourceStatus]:
    """The machine that an ended child of `host.stream_machine` describes, and how that went."""
    allocation = read_allocation(environment)
    document = next((facts for kind, facts in child.messages if kind == "machine"), None)
    if document is not None:
        return _machine(document, allocation), SourceStatus(SOURCE, SourceState.OK, seconds=child.seconds)
    late = child.ending == "timed_out"
    words = f"no answer within {child.seconds:.1f} s" if late else child.detail
    why = Missing(MissingReason.TIMED_OUT if late else MissingReason.ERROR, words)
    hostname = os.uname().nodename
    machine = all_missing(Machine, why, hostname=hostname, container=None, allocation=allocation)
    state = SourceState.TIMED_OUT if late else SourceState.FAILED
    return machine, SourceStatus(SOURCE, state, f"the machine's files: {words}", child.seconds)


def _machine(document: Mapping[str, Any], allocation: dict[str, str]) -> Machine:
    hostname = reading_of(document, "hostname")
    container = document["container"]
    return noun_of(
        Machine,
        document,
        hostname=os.uname().nodename if isinstance(hostname, Missing) else hostname,
        kernel_modules=_tuple_of(reading_of(document, "kernel_modules")),
        device_nodes=_tuple_of(reading_of(document, "device_nodes")),
        pci_devices=_nouns_of(PciDevice, reading_of(document, "pci_devices")),
        interfaces=_interfaces(reading_of(document, "interfaces")),
        container=None if container is None else noun_of(Container, container),
        allocation=allocation,
    )


def _interfaces(documents: Any) -> Reading[tuple[NetworkInterface, ...]]:
    if isinstance(documents, Missing):
        return documents
    return tuple(
        noun_of(NetworkInterface, document, addresses=tuple(document["addresses"])) for document in documents
    )


def _nouns_of(noun_type: Any, documents: Any) -> Any:
    if isinstance(documents, Missing):
        return documents
    return tuple(noun_of(noun_type, document) for document in documents)


def _tuple_of(values: Any) -> Any:
    return values if isinstance(values, Missing) else tuple(values)
