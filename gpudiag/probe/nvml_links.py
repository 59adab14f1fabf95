"""A GPU's NVLinks: which there are, whether they are up, what they lead to, and their error counters."""

from __future__ import annotations

from gpudiag.probe.nvml_ask import Ask, DeviceSheet, bus_id_of
from gpudiag.probe.nvml_errors import reason_of
from gpudiag.probe.sheet import NOT_SUPPORTED, Absent, Sheet

_LINK_COUNT_FIELD = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_LINKS_BEFORE_THE_COUNT = 6  # a driver too old for that field knows GPUs of at most six links (Volta)
# nvmlNvLinkErrorCounter_t
_ERROR_COUNTERS = (
    ("replay_errors", 0),
    ("recovery_errors", 1),
    ("crc_flit_errors", 2),
    ("crc_data_errors", 3),
)


def read_links(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the list of NVLinks, each with its own readings."""
    sheet.read("nvlinks", _links, ask)


def _links(ask: Ask) -> list[dict[str, object]]:
    """One entry a link.

    Raises:
        Absent: the GPU has none.
    """
    links = [_link(ask, link) for link in range(_link_count(ask))]
    found = [document for document in links if document is not None]
    if not found:
        raise Absent(NOT_SUPPORTED, "the GPU has no NVLink")
    return found


def _link_count(ask: Ask) -> int:
    try:
        return int(ask.field(_LINK_COUNT_FIELD))
    except Absent as absent:
        if absent.reason == NOT_SUPPORTED:
            raise
        return _LINKS_BEFORE_THE_COUNT


def _link(ask: Ask, link: int) -> dict[str, object] | None:
    """The readings of one link; None for a number that stands for no link of this GPU."""
    sheet = Sheet(_link_reason)
    sheet.read("active", lambda: bool(ask("nvmlDeviceGetNvLinkState", link)))
    reason = sheet.missing.get("active")
    if reason is not None and reason[0] == NOT_SUPPORTED:
        return None
    sheet.values["link"] = link
    sheet.read("remote_bus_id", lambda: bus_id_of(ask("nvmlDeviceGetNvLinkRemotePciInfo", link).busId))
    for name, counter in _ERROR_COUNTERS:
        sheet.read(name, ask.number, "nvmlDeviceGetNvLinkErrorCounter", link, counter)
    return sheet.document()


def _link_reason(error: Exception) -> tuple[str, str]:
    """NVML's gate, but an invalid argument is a link or a counter that is not there."""
    reason, detail = reason_of(error)
    return (NOT_SUPPORTED, detail) if getattr(error, "value", None) == 2 else (reason, detail)
