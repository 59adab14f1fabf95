"""Cases of what only level acceptance measures: all collectives, pairs of network cards, disks, the heat of a
load.
"""

from dataclasses import replace
from typing import Any

from gpudiag.model.active import DiskResult
from gpudiag.model.device import Snapshot
from gpudiag.model.measure import Localisation, Node, Suspect, Symptom
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.report import Measures
from gpudiag.units import GIB, MIB
from tests.scenarios.active_cases import SICK
from tests.scenarios.collective_cases import collective_cases
from tests.scenarios.situations import Situation, case, now
from tests.unit.checks.active_measures import measure_gpus
from tests.unit.collectives.measurements import make_measurement, make_result

RANKS = tuple(Node("a1", (rank,)) for rank in range(4))
SLOW = Suspect(Symptom.SLOW, (1,), None, 9e9, 40e9, 5)
LOSSY = Suspect(Symptom.LOSSY, (1,), None, 0.21, 0.001, 5, sent_again=0.021)
HUNG = Suspect(Symptom.FAILED, (1,), None, None, None, 5, words="Timed out waiting 8000ms")
LINK: dict[str, Any] = {"nodes": (0, 2), "rail": 0}


def pairs(*suspects: Suspect, usual: float = 40e9) -> Situation:
    """Each two GPUs exchanged data by their cards, and these stand out."""
    return localised(Localisation(RANKS, 7, 2.5, 6, usual, 0.001, suspects, ()))


def localised(found: Reading[Localisation]) -> Situation:
    return now(measured=lambda snapshot: Measures(card_pairs=make_measurement(localisation=found)))


def all_reduce(busbw: float) -> Situation:
    """All GPUs of the machine reduced 4 GiB at that speed."""

    def measure(snapshot: Snapshot) -> Measures:
        result = make_result(4 * GIB, busbw_bytes_per_second=busbw)
        values = {"backend": "nccl", "device_kind": "cuda", "world_size": len(snapshot.devices)}
        return Measures(operations=make_measurement(result, **values))

    return now(measured=measure)


def disk(**values: Any) -> Situation:
    """One file system that was tested."""
    sound = DiskResult("/scratch", 512 * MIB, 2e9, 3e9, direct=True)
    return now(measured=lambda snapshot: Measures(disks=(replace(sound, **values),)))


def heat(celsius_per_minute: float, last_celsius: float = 80.0) -> Situation:
    """One GPU gets hotter so fast in ten minutes of load."""

    def measure(snapshot: Snapshot) -> Measures:
        measured = measure_gpus(snapshot)
        uuid = snapshot.devices[SICK].id.uuid
        first = measured.telemetry[0]
        telemetry = tuple(
            replace(
                first,
                device_uuid=str(device.id.uuid),
                at_seconds=float(at),
                temperature_celsius=round(last_celsius - celsius_per_minute * (600 - at) / 60)
                if device.id.uuid == uuid
                else 60,
            )
            for at in range(0, 600, 5)
            for device in snapshot.devices
        )
        return Measures(active=replace(measured, telemetry=telemetry))

    return now(measured=measure)


GONE = Missing(MissingReason.ERROR, "Input/output error")
FULL = Missing(MissingReason.NOT_SUPPORTED, "No space left on device")

ACCEPTANCE_CASES = (
    *collective_cases("collective.operations", "operations"),
    case("collective.operations", "collective.slow")(all_reduce(150e9), all_reduce(480e9)),
    *collective_cases("network.card_pairs", "card_pairs"),
    case("network.card_pairs", "network.node_slow")(pairs(SLOW), pairs(replace(SLOW, **LINK))),
    case("network.card_pairs", "network.rail_slow")(pairs(replace(SLOW, rail=0)), pairs(SLOW)),
    case("network.card_pairs", "network.link_slow")(pairs(replace(SLOW, **LINK)), pairs(SLOW)),
    case("network.card_pairs", "network.node_lossy")(pairs(LOSSY), pairs(replace(LOSSY, **LINK))),
    case("network.card_pairs", "network.link_lossy")(pairs(replace(LOSSY, **LINK)), pairs(LOSSY)),
    case("network.card_pairs", "network.exchange_hangs")(pairs(HUNG), pairs()),
    case("network.card_pairs", "network.not_localised")(localised(GONE), pairs()),
    case("host.disk_data", "host.disk_data_differs")(disk(wrong_bytes=4096), disk()),
    case("host.disk_data", "host.disk_io_error")(
        disk(
            write_bytes_per_second=GONE,
            read_bytes_per_second=GONE,
            failure="Input/output error",
            is_fault=True,
        ),
        disk(write_bytes_per_second=FULL, read_bytes_per_second=FULL, failure="No space left on device"),
    ),
    case("compute.heat", "compute.heats_up")(heat(0.6), heat(0.1)),
)
