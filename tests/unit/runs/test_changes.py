from datetime import datetime

from gpudiag.compat import UTC
from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.service import TimelineEntry
from gpudiag.service.live import Changes, last_good_of
from tests.unit.model.nouns import make_device, make_snapshot

LOST = Missing(MissingReason.DEVICE_LOST, "GPU is lost (NVML 15)")
SILENT = Missing(MissingReason.TIMED_OUT, "nvmlInit has not come back")
WELL = make_snapshot(make_device(0), make_device(1))
ONE_LOST = make_snapshot(make_device(0), make_device(1, responding=LOST))
NOT_STARTED = make_snapshot(
    make_device(0, responding=SILENT),
    make_device(1, responding=SILENT),
    driver_version=SILENT,
    sources=(SourceStatus("nvml", SourceState.TIMED_OUT),),
)
MISSED = Missing(MissingReason.SOURCE_ABSENT, "the driver no longer lists it")
ONE_LISTED = make_snapshot(make_device(0), make_device(1, responding=MISSED))


def told(*snapshots) -> list[tuple[str, int | None]]:
    entries: list[TimelineEntry] = []
    changes = Changes(entries.append)
    for snapshot in snapshots:
        changes.compare(snapshot)
    return [(entry.kind.value, entry.nvml_index) for entry in entries]


def test_a_gpu_that_is_lost_and_comes_back_is_told_twice():
    assert told(WELL, ONE_LOST, ONE_LOST, WELL) == [("gpu_lost", 1), ("gpu_back", 1)]
    assert told(WELL, ONE_LISTED, WELL) == [("gpu_lost", 1), ("gpu_back", 1)]


def test_what_the_first_picture_lacks_is_the_findings_to_say_but_its_return_is_told():
    assert told(ONE_LOST, WELL) == [("gpu_back", 1)]


def test_no_gpu_is_back_because_the_driver_took_a_while_to_start():
    assert told(NOT_STARTED, WELL) == []
    assert told(NOT_STARTED, ONE_LOST, WELL) == [("gpu_back", 1)]


def test_a_gpu_that_was_listed_and_not_read_has_no_last_good_numbers():
    now = datetime(2026, 11, 20, tzinfo=UTC)
    assert last_good_of(make_device(0), now) is None
    last_good = last_good_of(make_device(0, temperature_celsius=61), now)
    assert last_good is not None
    assert last_good.temperature_celsius == 61
