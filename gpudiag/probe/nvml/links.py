"""A GPU's NVLinks: which there are, whether they are up, what they lead to, and their error counters."""

from __future__ import annotations

from typing import Any

from gpudiag.probe.nvml.ask import (
    INVALID_ARGUMENT,
    Ask,
    DeviceSheet,
    bus_id_of,
    field_value,
    known,
    reason_of,
)
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, Absent, Sheet

_LINK_COUNT_FIELD = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_LINKS_BEFORE_THE_COUNT = 6  # a driver too old for that field knows GPUs of at most six links (Volta)
_NO_LINK = (INVALID_ARGUMENT,)  # a link, or a counter, that is not there
_STATE_FIELD = 165  # NVML_FI_DEV_NVLINK_GET_STATE, scope: the link
# NVML_FI_DEV_NVLINK_*_ERROR_COUNT_L0 to _L5 and _L6 to _L11, by where each row starts; later links have no field.
_COUNTER_FIELDS = {
    "replay_errors": (46, 108),
    "recovery_errors": (53, 114),
    "crc_flit_errors": (32, 96),
    "crc_data_errors": (39, 102),
}
_LINKS_OF_A_ROW = 6
_RECOVERY_FAILURES, _BIT_ERROR_RATE = 214, 220  # NVLink 5, scope: the link
_BEFORE_NVLINK_5 = ("pascal", "volta", "turing", "ampere", "ada", "hopper")
_ANY_CODE = range(1000)  # of nvmlReturn_t
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
    """One entry per link.

    Raises:
        Absent: the GPU has none.
    """
    count = _link_count(ask)
    together = _asked_together(ask, count)
    links = [_link(ask, link, together) for link in range(count)]
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


def _asked_together(ask: Ask, count: int) -> dict[tuple[str, int], int]:
    """States and error counters of all links, as far as one call answers them; the rest is asked singly.

    One by one that would be 90 calls on a GPU with 18 links, each of which takes the driver's lock.
    """
    wanted: dict[tuple[str, int], Any] = {("active", link): (_STATE_FIELD, link) for link in range(count)}
    for name, rows in _COUNTER_FIELDS.items():
        for link in range(min(count, len(rows) * _LINKS_OF_A_ROW)):
            row, place = divmod(link, _LINKS_OF_A_ROW)
            wanted[name, link] = rows[row] + place
    try:
        values = ask.allowing(_ANY_CODE, "nvmlDeviceGetFieldValues", list(wanted.values()))
    except Exception:  # noqa: BLE001 - a driver that refuses the batch answers the single questions, or says why not
        return {}
    found = {}
    for key, value in zip(wanted, values, strict=True):
        try:
            found[key] = known(int(field_value(value)))
        except Absent:
            continue
    return found


def _link(ask: Ask, link: int, together: dict[tuple[str, int], int]) -> dict[str, object] | None:
    """The readings of one link; None where this GPU has no link of that number."""
    sheet = Sheet(_link_reason)
    sheet.read("active", _is_active, ask, link, together.get(("active", link)))
    reason = sheet.missing.get("active")
    if reason is not None and reason[0] == NOT_SUPPORTED:
        return None
    sheet.values["link"] = link
    sheet.read("remote_bus_id", ask.once, ("remote", link), lambda: _remote_bus_id(ask, link))
    for name, counter in _ERROR_COUNTERS:
        if (name, link) in together:
            sheet.values[name] = together[name, link]
        else:
            sheet.read(name, _error_count, ask, link, counter)
    return sheet.document()


def _is_active(ask: Ask, link: int, state: int | None) -> bool:
    """Whether the link is up, by the state that is known already or else by asking for it."""
    if state is None:
        state = ask.allowing(_NO_LINK, "nvmlDeviceGetNvLinkState", link)
    if state not in (0, 1):  # nvmlEnableState_t
        raise Absent(ERROR, f"NVML answers {state}, which gpudiag has no word for")
    return bool(state)


def _remote_bus_id(ask: Ask, link: int) -> str:
    return bus_id_of(ask.allowing(_NO_LINK, "nvmlDeviceGetNvLinkRemotePciInfo", link).busId)


def _error_count(ask: Ask, link: int, counter: int) -> int:
    return known(ask.allowing(_NO_LINK, "nvmlDeviceGetNvLinkErrorCounter", link, counter))


def _link_reason(error: Exception) -> tuple[str, str]:
    """`reason_of`, but NOT_SUPPORTED for an invalid argument: a link or a counter that is not there."""
    reason, detail = reason_of(error)
    return (NOT_SUPPORTED, detail) if getattr(error, "value", None) == 2 else (reason, detail)


def add_recovery(ask: Ask, sheet: DeviceSheet) -> None:
    """Add to each link what NVLink 5 says of it: recoveries that failed, and the bit error rate."""
    links = sheet.values.get("nvlinks")
    if not links or sheet.values.get("architecture") in _BEFORE_NVLINK_5 or sheet.lost is not None:
        return
    numbers = [link["link"] for link in links]
    asked = [(field, number) for field in (_RECOVERY_FAILURES, _BIT_ERROR_RATE) for number in numbers]
    try:
        values = list(ask.allowing((INVALID_ARGUMENT,), "nvmlDeviceGetFieldValues", asked))
    except Exception:  # noqa: BLE001 - the fields stay NOT_ASKED: an older driver refuses them all
        return
    for link, failures, rate in zip(links, values[: len(numbers)], values[len(numbers) :], strict=True):
        _add_reading(link, "recovery_failures", failures)
        _add_reading(link, "bit_error_rate", rate)


def _add_reading(link: dict[str, Any], name: str, value: object) -> None:
    try:
        number = field_value(value)
    except Absent as absent:
        link["missing"][name] = absent.reason
        return
    link[name] = parse_bit_error_rate(int(number)) if name == "bit_error_rate" else int(number)


def parse_bit_error_rate(encoded: int) -> float:
    """The rate that NVML packs into mantissa (bits 8 to 11) and minus the exponent (nvml.h, BER_GET)."""
    mantissa, exponent = encoded >> 8 & 0xF, encoded & 0xFF
    return float(mantissa * 10.0**-exponent)
