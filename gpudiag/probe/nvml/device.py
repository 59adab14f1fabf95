"""Every reading of one GPU through NVML, as the table of readings declares it, its NVLinks included."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpudiag.probe.nvml.activity import (
    TRAFFIC_FIELDS,
    add_instance_activity,
    read_activity,
    read_nvlink_traffic,
)
from gpudiag.probe.nvml.ask import (
    INVALID_ARGUMENT,
    Ask,
    DeviceSheet,
    as_text,
    bus_id_of,
    enable_state,
    field_value,
    known,
    percent,
    reason_of,
    word,
)
from gpudiag.probe.nvml.details import (
    conclude_inforom,
    read_brand,
    read_codecs,
    read_fabric,
    read_gsp_modes,
    read_inforom_valid,
    read_link_speed,
    read_pcie_errors,
    read_sram_threshold,
    read_throttle_seconds,
    read_vgpu_license,
)
from gpudiag.probe.nvml.memory import (
    read_ecc_locations,
    read_instances,
    read_memory,
    read_processes,
    read_retired_pages,
    read_row_remap_histogram,
)
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, Absent, Sheet
from gpudiag.reference.declaration import Activity, ByHand, Call, Declared, Field, Question, Tier, by_question
from gpudiag.reference.readings import READINGS
from gpudiag.reference.vocabulary import reasons_of

# --- its links

_LINK_COUNT_FIELD = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_LINKS_BEFORE_THE_COUNT = 6  # a driver too old for that field knows GPUs of at most six links (Volta)
_NO_LINK = (INVALID_ARGUMENT,)  # a link, or a counter, that is not there
_STATE_FIELD = 165  # NVML_FI_DEV_NVLINK_GET_STATE, scope: the link
# NVML_FI_DEV_NVLINK_*_ERROR_COUNT_L0 to _L5 and _L6 to _L11, by where each row starts; later links have no
# field.
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
    """One entry per link. Raises Absent: the GPU has none."""
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
    """States and error counters of all links, as far as one call has them: singly it takes 90 calls."""
    wanted: dict[tuple[str, int], Any] = {("active", link): (_STATE_FIELD, link) for link in range(count)}
    for name, rows in _COUNTER_FIELDS.items():
        for link in range(min(count, len(rows) * _LINKS_OF_A_ROW)):
            row, place = divmod(link, _LINKS_OF_A_ROW)
            wanted[name, link] = rows[row] + place
    try:
        values = list(
            ask.allowing(_ANY_CODE, "nvmlDeviceGetFieldValues", [*wanted.values(), *TRAFFIC_FIELDS])
        )
    # A driver that refuses the batch answers the single questions, or gives the reason there.
    except Exception:  # noqa: BLE001
        return {}
    ask.fields.update(zip(TRAFFIC_FIELDS, values[len(wanted) :], strict=True))
    found = {}
    for key, value in zip(wanted, values[: len(wanted)], strict=True):
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
    sheet.read(
        "remote_bus_id",
        ask.once,
        ("remote", link),
        lambda: bus_id_of(ask.allowing(_NO_LINK, "nvmlDeviceGetNvLinkRemotePciInfo", link).busId),
    )
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
        raise Absent(ERROR, f"NVML answers {state}, which gpudiag does not know")
    return bool(state)


def _error_count(ask: Ask, link: int, counter: int) -> int:
    return known(ask.allowing(_NO_LINK, "nvmlDeviceGetNvLinkErrorCounter", link, counter))


def _link_reason(error: Exception) -> tuple[str, str]:
    """`reason_of`, but NOT_SUPPORTED for an invalid argument: a link or a counter that is not there."""
    reason, detail = reason_of(error)
    return (NOT_SUPPORTED, detail) if getattr(error, "value", None) == 2 else (reason, detail)


def add_recovery(ask: Ask, sheet: DeviceSheet) -> None:
    """Add to each link what NVLink 5 reports of it: recoveries that failed, and the bit error rate."""
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


# --- all of it

_NO_SUBSYSTEM = "00000000"

_SLOWEST_PSTATE, _PSTATE_UNKNOWN = 15, 32  # nvmlPstates_t


def _read_place(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read_together(("bus_id", "pci_subsystem_id"), _place, ask)
    if sheet.values.get("pci_subsystem_id") == _NO_SUBSYSTEM:
        del sheet.values["pci_subsystem_id"]
        sheet.mark("pci_subsystem_id", NOT_SUPPORTED, "NVML answers 0")


def _place(ask: Ask) -> tuple[str, str]:
    """The PCI address and the subsystem's id, whose lower half is the board's maker, the upper its model."""
    info = ask("nvmlDeviceGetPciInfo")
    return bus_id_of(info.busId), f"{info.pciSubSystemId:08x}"


def _read_serial(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("serial", _serial, ask)


def _serial(ask: Ask) -> str:
    serial = ask.text("nvmlDeviceGetSerial")
    if serial.strip("0") == "":
        raise Absent(NOT_SUPPORTED, f"NVML answers {serial!r}")
    return serial


def _read_compute_capability(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("compute_capability", _compute_capability, ask)


def _compute_capability(ask: Ask) -> str:
    major, minor = ask("nvmlDeviceGetCudaComputeCapability")
    return f"{major}.{minor}"


def _read_pstate(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("pstate", _pstate, ask)


def _pstate(ask: Ask) -> int:
    """The performance state, 0 (fastest) to 15."""
    state: int = ask("nvmlDeviceGetPerformanceState")
    if state == _PSTATE_UNKNOWN:
        raise Absent(NOT_SUPPORTED, "NVML answers P32, unknown")
    if not 0 <= state <= _SLOWEST_PSTATE:
        raise Absent(ERROR, f"NVML answers {state}, which gpudiag does not know")
    return state


def _read_event_reasons(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("clocks_event_reasons", _event_reasons, ask)


def _event_reasons(ask: Ask) -> list[str]:
    """The words for the bits set in the mask of reasons why the clocks are not higher."""
    mask = ask.first_of(
        lambda: ask("nvmlDeviceGetCurrentClocksEventReasons"),
        lambda: ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    )
    return reasons_of(mask)


BY_HAND: dict[str, Callable[[Ask, DeviceSheet], None]] = {
    "brand": read_brand,
    "codecs": read_codecs,
    "compute_capability": _read_compute_capability,
    "ecc_locations": read_ecc_locations,
    "event_reasons": _read_event_reasons,
    "fabric": read_fabric,
    "gsp_modes": read_gsp_modes,
    "inforom_valid": read_inforom_valid,
    "memory": read_memory,
    "mig_instances": read_instances,
    "nvlink_speed": read_link_speed,
    "nvlink_traffic": read_nvlink_traffic,
    "nvlinks": read_links,
    "pcie_errors": read_pcie_errors,
    "place": _read_place,
    "processes": read_processes,
    "pstate": _read_pstate,
    "retired_pages": read_retired_pages,
    "row_remap_histogram": read_row_remap_histogram,
    "serial": _read_serial,
    "sram_threshold": read_sram_threshold,
    "throttle_seconds": read_throttle_seconds,
    "vgpu_license": read_vgpu_license,
}


Plan = list[tuple[Question, tuple[Declared, ...]]]


def plan_of(*names: str) -> Plan:
    """The questions to ask for the readings of those names, in the table's order."""
    return by_question(declared for declared in READINGS if declared.name in names)


def plan_of_tier(tier: Tier) -> Plan:
    """The questions to ask for the readings of that tier, in the table's order."""
    return by_question(declared for declared in READINGS if declared.tier == tier)


def fields_of(plan: Plan) -> tuple[int, ...]:
    """The numbers of NVML's fields that the plan asks for: one call answers all of them."""
    numbers: list[int] = []
    for question, _ in plan:
        if isinstance(question, Field):
            numbers.append(question.number)
        elif isinstance(question, ByHand):
            numbers += question.fields
    return tuple(numbers)


def read_plan(ask: Ask, sheet: DeviceSheet, plan: Plan) -> None:
    """Fill in every reading of the plan."""
    fields = fields_of(plan)
    if fields:
        # On a throwaway sheet: where the batch fails, each field is asked for singly.
        DeviceSheet().read("batch", ask.read_fields, fields)
    for question, readings in plan:
        if isinstance(question, Activity):
            continue
        if isinstance(question, ByHand):
            BY_HAND[question.name](ask, sheet)
        elif isinstance(question, Field):
            sheet.read(readings[0].name, _read_field, ask, question)
        elif question.place is None:
            sheet.read(readings[0].name, _read_call, ask, question)
        else:
            sheet.read_together([one.name for one in readings], _read_members, ask, question, readings)
    # Last: memory could not be read after it on one old driver, by its users' reports.
    activity = activity_of(plan)
    if activity:
        read_activity(ask, sheet, activity)
    _drop_what_no_board_has(sheet, (one.name for _, readings in plan for one in readings))


# By a reading's unit, what no board comes near: above it NVML has answered with other bytes, such as a driver
# whose 32-bit library gives a counter for the power (flightlessmango/MangoHud pull request 2144), or an empty
# 64-bit number for a temperature (NVIDIA/gpu-monitoring-tools issue 97). Own choice, of the order of three
# times what boards are built for.
_MOST_OF_A_BOARD = {"celsius": 300, "watts": 10_000, "mhz": 30_000}


def _drop_what_no_board_has(sheet: DeviceSheet, names: Iterable[str]) -> None:
    """Replace each number that is far beyond any board by the reason."""
    for name in names:
        most, value = _MOST_OF_A_BOARD.get(name.rpartition("_")[2]), sheet.values.get(name)
        if most is not None and isinstance(value, int | float) and value > most:
            del sheet.values[name]
            sheet.mark(name, NOT_SUPPORTED, f"NVML answers {value:.6g}, which no board comes near")


def activity_of(plan: Plan) -> list[Declared]:
    """The readings of the plan that are of the time between two looks; one call answers all of them."""
    return [one for question, readings in plan if isinstance(question, Activity) for one in readings]


def _read_field(ask: Ask, field: Field) -> Any:
    try:
        return _given(ask.field(field.number), field)
    except Absent:
        if field.otherwise is None:
            raise
    return _read_call(ask, field.otherwise)


def _read_call(ask: Ask, call: Call) -> Any:
    if call.older is not None:
        older = call.older
        return ask.first_of(lambda: _answer(ask, call), lambda: _answer(ask, older))
    return _answer(ask, call)


def _answer(ask: Ask, call: Call) -> Any:
    if call.gives == "text":
        return as_text(lambda: ask(call.function, *call.arguments))
    return _given(ask(call.function, *call.arguments), call)


def _read_members(ask: Ask, call: Call, readings: Iterable[Declared]) -> list[Any]:
    answer = ask(call.function, *call.arguments)
    return [
        _given(answer[one.place] if isinstance(one.place, int) else getattr(answer, str(one.place)), one)
        for one in (declared.question for declared in readings)
        if isinstance(one, Call)
    ]


def _given(raw: Any, question: Call | Field) -> Any:
    """NVML's number as the reading's value. Raises Absent: it is all ones, or impossible."""
    gives = question.gives
    if gives == "switch":
        return enable_state(raw)
    if isinstance(gives, tuple):
        return word(gives, raw)
    number = known(raw)
    if gives == "flag":
        return bool(number)
    if gives == "positive" and number == 0:
        raise Absent(ERROR, "NVML answers 0")
    if gives == "running" and number <= 0:
        # JetPack 6 answers success and zeros for the GPU of an Orin (nv-monitor issue 10, jetson_stats issue
        # 889).
        raise Absent(NOT_SUPPORTED, f"NVML answers {number}, which no GPU that runs has")
    if number < 0 and gives != "signed":
        raise Absent(NOT_SUPPORTED, f"NVML answers {number}, which cannot be below 0")
    if gives == "percent":
        percent(number)
    return number if question.per == 1 else number / question.per


_ONCE = plan_of_tier("once")
_FAST = plan_of_tier("fast")
_FIXED = plan_of_tier("fixed")
_DECIDES = plan_of("recovery_action")  # whether the GPU can be used: first
_PROMPT = [*_DECIDES, *(asked for asked in plan_of_tier("prompt") if asked not in _DECIDES), *_FAST]
_SLOW = plan_of_tier("slow")
_MOVING, _STATE = (
    [*_PROMPT, *sorted(rest, key=lambda asked: isinstance(asked[0], ByHand))]
    for rest in (_SLOW, [*_SLOW, *_FIXED])
)
FIXED_NAMES = tuple(one.name for _, readings in _FIXED for one in readings)
# An instance has no link of its own.
_OF_INSTANCES = [one for one in activity_of(_SLOW) if not one.name.startswith("nvlink_")]
# What a test reads of the GPU under load: 7 calls.
_STRAINED = plan_of(
    "temperature_celsius",
    "memory_temperature_celsius",
    "power_draw_watts",
    "sm_clock_mhz",
    "clocks_event_reasons",
    "pcie_generation",
    "pcie_width",
)


def read_device(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill `sheet` with every reading of model.Device that NVML gives, and the raw list of processes."""
    read_identity(ask, sheet)
    read_state(ask, sheet)


def read_identity(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the GPU's identity; UUID and bus id first: they name the row if nothing else comes."""
    read_plan(ask, sheet, _ONCE)


def read_state(ask: Ask, sheet: DeviceSheet, *, fixed: bool = True) -> None:
    """Fill in everything but the identity; without `fixed`, not what only a user changes (`FIXED_NAMES`)."""
    read_plan(ask, sheet, _STATE if fixed else _MOVING)
    add_recovery(ask, sheet)
    add_instance_activity(ask, sheet, _OF_INSTANCES)
    conclude_inforom(ask, sheet)


def read_fast(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in only what changes from second to second, in as few calls as it takes (6 on a new driver)."""
    read_plan(ask, sheet, _FAST)


def read_prompt(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in that, and what must be known within seconds, for jobs must stay away (4 calls more)."""
    read_plan(ask, sheet, _PROMPT)


def read_sensors(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in clock, temperatures, power and PCIe link of a GPU under a test's load."""
    read_plan(ask, sheet, _STRAINED)
