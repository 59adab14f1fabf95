import resource
import signal

import pytest

from gpudiag.sampler.ring import NAMES, Ring, plan_window, read_window
from gpudiag.sampler.spill import Sampled, Spill

NOW = 1_800_000_000.0
UUID = "GPU-5df6f817-b099-2bcf-60ec-6db25097c040"


def values(power: float) -> tuple[float, ...]:
    return tuple(power if name == "power_draw_watts" else float("nan") for name in NAMES)


def power_at(ring: Ring, at: float) -> float | None:
    if UUID not in ring.devices:
        return None
    window = plan_window(at, at, 1, at)
    return read_window(ring.devices[UUID], "power_draw_watts", window)[0]


def test_a_copy_and_the_journal_after_it_are_read_again(tmp_path):
    spill, ring = Spill(tmp_path), Ring()
    ring.add_values(UUID, NOW, values(70.0))
    spill.save(ring)
    spill.append([Sampled(UUID, NOW + 1, values(71.0))])
    found = Spill(tmp_path).load()
    assert [power_at(found, NOW), power_at(found, NOW + 1)] == [70.0, 71.0]


def test_what_is_older_than_an_hour_is_there_after_a_copy_and_a_new_sample(tmp_path):
    spill, ring = Spill(tmp_path), Ring()
    ring.add_values(UUID, NOW - 7200, values(70.0))
    ring.add_values(UUID, NOW, values(float("nan")))
    spill.save(ring)
    found = Spill(tmp_path).load()
    found.add_values(UUID, NOW + 1, values(71.0))
    window = plan_window(NOW - 7200, NOW - 7200, 10, NOW)
    assert read_window(found.devices[UUID], "power_draw_watts", window)[0] == 70.0
    assert power_at(found, NOW + 1) == 71.0


def test_a_copy_of_other_series_is_read_by_their_names(tmp_path, monkeypatch):
    ring = Ring()
    ring.add_values(UUID, NOW, values(70.0))
    named = list(NAMES)
    place = named.index("power_draw_watts")
    named[place], named[0] = "pstate", "of_another_version"
    monkeypatch.setattr("gpudiag.sampler.spill.NAMES", tuple(named))
    Spill(tmp_path).save(ring)
    monkeypatch.undo()
    found = Spill(tmp_path).load()
    window = plan_window(NOW, NOW, 1, NOW)
    assert read_window(found.devices[UUID], "pstate", window)[0] == 70.0
    assert read_window(found.devices[UUID], "power_draw_watts", window)[0] is None


def test_a_journal_of_other_series_is_as_if_it_were_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("gpudiag.sampler.spill._LAYOUT", 1)
    Spill(tmp_path).append([Sampled(UUID, NOW, values(70.0))])
    monkeypatch.undo()
    assert Spill(tmp_path).load().devices == {}


@pytest.mark.parametrize("cut", [1, 40, 100])
def test_a_journal_that_was_cut_short_loses_its_last_record(tmp_path, cut):
    spill = Spill(tmp_path)
    spill.append([Sampled(UUID, NOW, values(70.0)), Sampled(UUID, NOW + 1, values(71.0))])
    journal = tmp_path / "readings.journal"
    journal.write_bytes(journal.read_bytes()[:-cut])
    found = spill.load()
    assert [power_at(found, NOW), power_at(found, NOW + 1)] == [70.0, None]


@pytest.mark.parametrize("data", [b"", b"nonsense", b"gpudiag readings 1\nnonsense"])
def test_a_copy_that_cannot_be_read_is_as_if_it_were_not_there(tmp_path, data):
    spill = Spill(tmp_path)
    (tmp_path / "readings.ring").write_bytes(data)
    spill.append([Sampled(UUID, NOW, values(70.0))])
    assert power_at(spill.load(), NOW) == 70.0


def test_a_full_disk_costs_what_could_not_be_written_and_nothing_else(tmp_path):
    spill = Spill(tmp_path)
    spill.append([Sampled(UUID, NOW, values(70.0))])
    size = (tmp_path / "readings.journal").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            spill.append([Sampled(UUID, NOW + 1, values(71.0))])
        ring = Ring()
        ring.add_values(UUID, NOW + 2, values(1.0))
        with pytest.raises(OSError, match="large"):
            spill.save(ring)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "readings.journal").stat().st_size == size
    spill.append([Sampled(UUID, NOW + 3, values(73.0))])
    found = spill.load()
    assert [power_at(found, NOW), power_at(found, NOW + 1), power_at(found, NOW + 3)] == [70.0, None, 73.0]
    assert not list(tmp_path.glob("*.new"))


def test_a_timeline_with_a_line_cut_short_keeps_the_others(tmp_path):
    spill = Spill(tmp_path)
    spill.append_timeline([{"number": 1}, {"number": 2}])
    path = tmp_path / "timeline.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    spill.append_timeline([{"number": 3}])
    assert {"number": 1} in spill.load_timeline()
