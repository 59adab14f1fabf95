from dataclasses import replace

from gpudiag.model.device import SourceState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.sampler.picture import NvmlPicture

LIBRARY = {
    "driver_version": "580.105.08",
    "nvml_version": "13",
    "cuda_driver_version": "13.0",
    "missing": {},
    "missing_detail": {},
}


def sheet(index: int, **readings) -> dict:
    known = (
        {"uuid": f"GPU-{index}", "bus_id": f"00000000:0{index}:00.0", "name": "NVIDIA H100"}
        | {"temperature_celsius": 30, "utilization_percent": 5, "power_draw_watts": 70.0}
        | {"memory_total_bytes": 1, "pstate": 0, "sm_clock_mhz": 1980}
    )
    return read(**(known | readings))


def read(missing=None, **readings) -> dict:
    """What a tick has of one GPU: these readings, and why others are missing."""
    return {**readings, "missing": missing or {}, "missing_detail": {}}


def tick(fast=None, slow=None, late=None, **more) -> dict:
    slow = {str(index): {"document": document, "processes": {}} for index, document in (slow or {}).items()}
    fast = {str(index): one for index, one in (fast or {}).items()}
    late = {str(index): told for index, told in (late or {}).items()}
    times = {
        "at": 1.0,
        "seconds": 0.001,
        "interval": 1.0,
        "waited": 0.0,
        "longest": ("nvmlDeviceGetName", 0.001),
    }
    given = {"peers": {}, "xids": [], "slow": slow, "fast": fast, "late": late}
    return {"kind": "tick", "sequence": 1} | times | given | more


def started(count: int = 2, now: float = 100.0) -> NvmlPicture:
    picture = NvmlPicture()
    picture.add({"kind": "library", "document": LIBRARY, "count": count}, now)
    picture.add(tick(slow={index: sheet(index) for index in range(count)}), now)
    return picture


def device(picture: NvmlPicture, index: int, now: float = 100.0):
    return next(one for one in picture.answer(now).devices if one.id.nvml_index == index)


def test_fast_readings_replace_those_of_the_whole_one():
    picture = started()
    fast = {"temperature_celsius": 61, "missing": {"power_draw_watts": "not_supported"}, "missing_detail": {}}
    assert picture.add(tick(fast={1: fast}), 101.0) is False
    hot = device(picture, 1)
    assert hot.temperature_celsius == 61
    assert hot.power_draw_watts == Missing(MissingReason.NOT_SUPPORTED)
    assert hot.utilization_percent == 5
    assert picture.with_fast(device(started(), 1)).temperature_celsius == 61


def test_fast_readings_are_not_put_on_another_gpu_that_had_the_index_before():
    picture = started()
    picture.add(tick(fast={1: {"temperature_celsius": 61, "missing": {}, "missing_detail": {}}}), 101.0)
    before = device(picture, 1)
    other = replace(before, id=replace(before.id, uuid="GPU-other"), temperature_celsius=30)
    assert picture.with_fast(other) is other


def test_when_nvml_answered_last_is_known_after_it_failed():
    picture = started()
    picture.add({"kind": "failed", "document": {"state": "driver_not_loaded", "reason": "gone"}}, 102.0)
    assert picture.tick_at is None
    assert picture.answered_at == 1.0


def test_a_gpu_is_silent_after_the_deadline_and_keeps_who_it_is():
    picture = started()
    late = {1: ["nvmlDeviceGetPowerUsage", 0.5, None]}
    picture.add(tick(fast={}, late=late), 101.0)
    assert device(picture, 1, 101.0).responding is True
    assert picture.late(103.0).keys() == {1}
    silent = device(picture, 1, 103.0)
    assert silent.responding.reason is MissingReason.TIMED_OUT
    assert "nvmlDeviceGetPowerUsage" in silent.responding.detail
    assert silent.temperature_celsius.reason is MissingReason.TIMED_OUT
    assert silent.id.uuid == "GPU-1"
    assert device(picture, 0, 103.0).responding is True


def test_a_gpu_that_is_being_attached_is_no_reason_for_a_fresh_process():
    picture = NvmlPicture()
    picture.add({"kind": "library", "document": LIBRARY, "count": 2}, 100.0)
    picture.add(tick(late={1: ["nvmlDeviceGetHandleByIndex", 4.5, None]}, slow={0: sheet(0)}), 104.5)
    assert picture.late(104.5).keys() == {1}
    assert picture.wedged(104.5) == {}
    assert device(picture, 1, 104.5).responding.reason is MissingReason.ATTACHING
    assert picture.wedged(111.0).keys() == {1}  # five seconds for each of the two are over
    assert device(picture, 1, 111.0).responding.reason is MissingReason.TIMED_OUT


def test_a_successor_that_counts_anew_does_not_make_a_silent_gpu_well():
    picture = started()
    picture.add(tick(late={1: ["nvmlDeviceGetName", 2.5, None]}), 103.0)
    picture.add({"kind": "library", "document": LIBRARY, "count": 2}, 104.0)
    picture.add(
        tick(slow={0: sheet(0)}, late={1: ["nvmlDeviceGetUUID", 0.1, {"missing": {}, "missing_detail": {}}]}),
        104.0,
    )
    assert picture.late(104.0).keys() == {1}
    assert device(picture, 1, 104.0).id.uuid == "GPU-1"
    picture.add(tick(slow={1: sheet(1)}), 105.0)
    assert picture.late(110.0) == {}
    assert device(picture, 1, 110.0).responding is True


def test_a_gpu_lost_between_two_whole_readings_has_no_reading_left():
    picture = started()
    lost = {
        "missing": {"temperature_celsius": "device_lost", "pstate": "device_lost"},
        "missing_detail": {"temperature_celsius": "GPU is lost (NVML 15)"},
    }
    assert picture.add(tick(fast={0: lost}), 101.0) is True
    gone = device(picture, 0)
    assert gone.responding.reason is MissingReason.DEVICE_LOST
    assert gone.power_draw_watts.reason is MissingReason.DEVICE_LOST
    assert gone.id.uuid == "GPU-0"
    assert picture.lost() == [0]


def test_an_init_that_hangs_silences_every_gpu_that_was_known():
    picture = started()
    picture.add({"kind": "starting", "call": "nvmlInit", "seconds": 1.0}, 105.0)
    picture.add({"kind": "starting", "call": "nvmlInit", "seconds": 2.5}, 106.5)
    assert picture.late(106.5).keys() == {0, 1}


def test_a_refusal_forgets_the_gpus_and_gives_the_state():
    picture = started()
    document = {"state": "driver_not_loaded", "words": "Driver Not Loaded", "code": 9, "library": None}
    assert picture.add({"kind": "failed", "document": document}) is True
    assert picture.add({"kind": "failed", "document": document}) is False
    answer = picture.answer()
    assert answer.status.state is SourceState.DRIVER_NOT_LOADED
    assert answer.devices == ()


def test_another_number_of_gpus_starts_from_nothing():
    picture = started(2)
    picture.add({"kind": "library", "document": LIBRARY, "count": 1}, 101.0)
    picture.add(tick(slow={0: sheet(5)}), 101.0)
    assert [one.id.uuid for one in picture.answer(101.0).devices] == ["GPU-5"]


VITAL = (
    *("memory_total_bytes", "utilization_percent", "temperature_celsius", "power_draw_watts", "pstate"),
    "sm_clock_mhz",
)


def all_failed() -> dict:
    return {
        "missing": dict.fromkeys(VITAL, "error"),
        "missing_detail": dict.fromkeys(VITAL, "Unknown Error (NVML 999)"),
    }


def test_a_gpu_whose_vital_calls_all_fail_is_told_at_that_tick():
    picture = started()
    assert picture.add(tick(fast={0: sheet(0), 1: all_failed()}), 101.0) is True
    assert device(picture, 1, 101.0).responding == Missing(MissingReason.ERROR, "Unknown Error (NVML 999)")
    assert device(picture, 0, 101.0).responding is True
    assert picture.add(tick(fast={1: all_failed()}), 102.0) is False  # nothing new
    assert picture.add(tick(fast={1: sheet(1)}), 103.0) is True
    assert device(picture, 1, 103.0).responding is True


def test_what_another_source_knows_stays_where_nvml_has_none():
    """Of a GPU with unified memory, the host gives the size, and NVML on every tick that it has none."""
    picture = started()
    without_size = read({"memory_total_bytes": "not_supported"}, utilization_percent=9)
    picture.add(tick(fast={1: without_size}), 101.0)
    shown = picture.with_fast(replace(device(started(), 1), memory_total_bytes=128 << 30))
    assert (shown.memory_total_bytes, shown.utilization_percent) == (128 << 30, 9)


def test_a_value_that_does_not_fit_costs_only_itself():
    picture = started()
    picture.add(tick(fast={1: read(temperature_celsius="hot", utilization_percent=9)}), 101.0)
    odd = device(picture, 1, 101.0)
    assert odd.temperature_celsius == Missing(
        MissingReason.ERROR, "temperature_celsius should be int, not 'hot'"
    )
    assert (odd.utilization_percent, odd.responding) == (9, True)


def say_late(picture: NvmlPicture, count: int, **more) -> None:
    for _ in range(count):
        picture.add(tick(**more), 101.0)


def test_three_late_readings_in_a_row_are_slow_and_five_in_time_are_well_again():
    for late in (
        {"seconds": 1.4, "longest": ("nvmlDeviceGetFieldValues", 1.2)},
        {"late": {1: ["nvmlDeviceGetFieldValues", 0.7, None]}},
    ):
        picture = started()
        say_late(picture, 2, **late)
        assert picture.slow is None
        say_late(picture, 1)
        say_late(picture, 2, **late)
        assert picture.slow is None  # not in a row
        say_late(picture, 1, **late)
        assert picture.slow is not None
        assert "nvmlDeviceGetFieldValues has taken" in picture.slow
        say_late(picture, 4)
        assert picture.slow is not None
        say_late(picture, 1)
        assert picture.slow is None


def test_a_busy_machine_is_not_a_slow_driver():
    picture = started()
    say_late(picture, 5, seconds=1.4, waited=0.9)
    say_late(picture, 5, late={1: ["nvmlDeviceGetName", 0.9, None]}, waited=0.6)
    assert picture.slow is None


def test_nobody_looking_is_not_slow():
    picture = started()
    say_late(picture, 5, seconds=0.3, interval=5.0)
    assert picture.slow is None


HANDLE = "nvmlDeviceGetHandleByIndex"
NO_HANDLE = {"missing": {"handle": "device_lost"}, "missing_detail": {"handle": "GPU is lost (NVML 15)"}}


def test_a_lost_gpu_whose_handle_is_refused_keeps_its_identity_and_is_counted_once():
    picture = started(3)
    picture.add(tick(slow={1: NO_HANDLE}), 105.0)
    gone = device(picture, 1, 105.0)
    assert (gone.id.uuid, gone.id.bus_id) == ("GPU-1", "00000000:01:00.0")
    assert gone.responding == Missing(MissingReason.DEVICE_LOST, "GPU is lost (NVML 15)")
    assert gone.temperature_celsius == Missing(MissingReason.DEVICE_LOST)
    assert len(picture.answer(105.0).devices) == 3
    assert picture.lost() == [1]


def silent(picture: NvmlPicture, index: int, seconds: float, now: float, call: str = HANDLE) -> None:
    others = {other: sheet(other) for other in range(picture.count or 0) if other != index}
    picture.add(tick(slow=others, late={index: [call, seconds, None]}), now)


def test_a_hung_gpu_stays_hung_when_a_fresh_sampler_asks_for_its_handle():
    picture = started(3)
    silent(picture, 1, 3.0, 103.0, "nvmlDeviceGetPowerUsage")
    assert device(picture, 1, 103.0).responding.reason is MissingReason.TIMED_OUT
    picture.add({"kind": "library", "document": LIBRARY, "count": 3}, 106.0)  # the successor
    assert device(picture, 1, 106.0).responding.reason is MissingReason.TIMED_OUT
    for seconds in (0.5, 3.0, 20.0):
        silent(picture, 1, seconds, 106.0 + seconds)
        assert device(picture, 1, 106.0 + seconds).responding.reason is MissingReason.TIMED_OUT
        assert picture.wedged(106.0 + seconds).keys() == {1}  # so that another successor is started
    picture.add(tick(slow={1: sheet(1)}), 130.0)
    assert device(picture, 1, 130.0).responding is True
    assert picture.late(130.0) == {}


def test_where_others_came_at_once_a_gpu_without_a_handle_hangs_and_is_not_being_attached():
    picture = NvmlPicture()
    picture.add({"kind": "library", "document": LIBRARY, "count": 4}, 100.0)
    silent(picture, 2, 0.5, 100.5)
    silent(picture, 2, 3.0, 103.0)
    assert device(picture, 2, 103.0).responding.reason is MissingReason.TIMED_OUT


def test_a_driver_that_attaches_one_gpu_after_the_other_is_starting():
    picture = NvmlPicture()
    picture.add({"kind": "library", "document": LIBRARY, "count": 4}, 100.0)
    picture.add(tick(late={index: [HANDLE, 3.0, None] for index in range(4)}), 103.0)
    assert device(picture, 0, 103.0).responding.reason is MissingReason.ATTACHING
    silent(picture, 3, 4.0, 104.0)
    assert device(picture, 3, 104.0).responding.reason is MissingReason.ATTACHING
    assert picture.wedged(104.0) == {}


def test_gpus_that_wait_for_a_processor_beside_a_hung_one_are_not_silent():
    picture = started(3)
    for second in range(1, 5):
        late = {
            1: ["nvmlDeviceGetName", second * 1.0, None],
            2: ["nvmlDeviceGetPowerUsage", second * 1.0, None],
        }
        picture.add(tick(late=late, waited=0.9, seconds=1.0), 100.0 + second)
        assert picture.late(100.0 + second) == {}
    picture.add(tick(slow={2: sheet(2)}, late={1: ["nvmlDeviceGetName", 5.0, None]}), 105.0)
    for second in range(6, 14):  # the host is quiet again
        picture.add(tick(slow={2: sheet(2)}, late={1: ["nvmlDeviceGetName", 1.0, None]}), 100.0 + second)
    assert picture.late(113.0).keys() == {1}


def test_a_gpu_that_hangs_on_a_busy_host_is_found_all_the_same():
    picture = started(2)
    for second in range(1, 15):
        late = {1: ["nvmlDeviceGetName", second * 1.0, None]}
        picture.add(tick(fast={0: sheet(0)}, late=late, waited=50.0), 100.0 + second)
    assert picture.late(114.0).keys() == {1}


def test_a_number_that_the_gpu_does_not_have_stays_absent_on_every_tick():
    """NVML of a GB10 answers 0 for its memory's controller, at any load."""
    picture = started()
    picture.add(tick(fast={1: read(memory_utilization_percent=0, utilization_percent=96)}), 101.0)
    absent = Missing(MissingReason.NOT_SUPPORTED, "the memory's controller is the processor's")
    shown = picture.with_fast(replace(device(started(), 1), memory_utilization_percent=absent))
    assert (shown.memory_utilization_percent, shown.utilization_percent) == (absent, 96)


def test_gpus_that_sleep_are_rows_without_readings_and_no_trouble():
    picture = NvmlPicture()
    sleeping = {"kind": "asleep", "at": 1.0, "bus_ids": ["00000000:01:00.0"]}
    assert picture.add(sleeping, 100.0) is True
    assert picture.add(sleeping, 101.0) is False
    assert picture.has_answer()
    (row,) = picture.answer(101.0).devices
    assert (row.is_asleep, row.id.bus_id) == (True, "00000000:01:00.0")
    assert (picture.late(200.0), picture.lost(), picture.is_hanging(200.0)) == ({}, [], False)
    picture.add({"kind": "library", "document": LIBRARY, "count": 1}, 110.0)  # it has woken
    picture.add(tick(slow={0: sheet(1)}), 110.0)
    assert device(picture, 0, 110.0).responding is True


def test_one_of_two_may_sleep():
    picture = started(2)
    assert picture.add(tick(slow={0: sheet(0)}, asleep={"1": "00000000:01:00.0"}), 101.0) is True
    assert [one.is_asleep for one in picture.answer(101.0).devices] == [False, True]
    assert picture.is_asleep()


# Of public reports: what their monitors told twice, or never took back.


def test_a_gpu_that_was_reset_is_well_again_without_a_restart():
    """Project-HAMi/HAMi/issues/2200, NVIDIA/dcgm-exporter/issues/500: a fault that is over is still told."""
    picture = started(4)
    picture.add(tick(slow={2: NO_HANDLE}), 105.0)
    assert picture.lost() == [2]
    picture.add(tick(slow={index: sheet(index) for index in range(4)}), 140.0)
    assert picture.lost() == []
    assert [one.responding for one in picture.answer(140.0).devices] == [True] * 4
    assert [one.id.uuid for one in picture.answer(140.0).devices] == [f"GPU-{index}" for index in range(4)]


def test_one_gpu_falls_silent_then_all_and_then_all_answer():
    """NVIDIA/dcgm-exporter/issues/164: one GPU's metrics are missing, then everybody's hang."""
    picture = started(3)
    silent(picture, 2, 2.5, 102.5, "nvmlDeviceGetUtilizationRates")
    assert picture.late(102.5).keys() == {2}
    late = {index: ["nvmlDeviceGetUtilizationRates", 4.0, None] for index in range(3)}
    picture.add(tick(late=late), 106.5)
    assert picture.late(106.5).keys() == {0, 1, 2}
    assert [one.id.uuid for one in picture.answer(106.5).devices] == ["GPU-0", "GPU-1", "GPU-2"]
    picture.add(tick(slow={index: sheet(index) for index in range(3)}), 110.0)
    assert picture.late(120.0) == {}
    assert [one.responding for one in picture.answer(120.0).devices] == [True] * 3


def test_gpus_that_answer_now_and_then_are_slow_and_never_silent():
    """NVIDIA/NVSentinel/issues/1748: under load some GPUs answer one sample of six, and the others all."""
    picture = started(4)
    told = set()
    for second in range(1, 40):
        waits = (second % 3) * 0.6  # at most 1.2 s, then it answers
        late = {1: ["nvmlDeviceGetFieldValues", waits, None]} if waits else {}
        answered = {index: sheet(index) for index in range(4) if index not in late}
        picture.add(tick(fast=answered, late=late, seconds=waits), 100.0 + second)
        assert picture.late(100.0 + second) == {}
        told.add(picture.slow is not None)
    assert told == {False}  # two late looks in a row are not yet slow, and none is a fault of the GPU


def test_a_driver_that_fails_and_comes_back_with_a_gpu_less_keeps_no_count_of_before():
    """NVIDIA/gpu-monitoring-tools/issues/46: nvidia-smi ends at once while a GPU is off the bus, and reports
    none.
    """
    picture = started(8)
    document = {"state": "failed", "words": "Unknown Error", "code": 999, "library": None}
    picture.add({"kind": "failed", "document": document}, 103.0)
    assert (picture.lost(), picture.late(110.0)) == ([], {})
    picture.add({"kind": "library", "document": LIBRARY, "count": 7}, 110.0)
    picture.add(tick(slow={index: sheet(index + 1) for index in range(7)}), 110.0)
    assert [one.id.uuid for one in picture.answer(110.0).devices] == [f"GPU-{index}" for index in range(1, 8)]
    assert picture.lost() == []


def test_a_fault_that_the_next_look_does_not_see_is_over():
    """NVIDIA/k8s-device-plugin/issues/234: one transient error, and the GPU is left out until the plugin's
    restart.
    """
    picture = started()
    picture.add(tick(fast={1: all_failed()}), 101.0)
    assert device(picture, 1, 101.0).responding == Missing(MissingReason.ERROR, "Unknown Error (NVML 999)")
    picture.add(tick(slow={1: sheet(1)}), 102.0)
    assert [one.responding for one in picture.answer(102.0).devices] == [True, True]
