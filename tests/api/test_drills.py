"""Faults that come and go on a machine under watch: seen and gone again without a restart of the service."""

import contextlib
import os
import signal

import pytest

from tests.api.serving import machine, serving

SEEN_SECONDS = 60.0  # proves that it is seen; it takes a few, and longer on a busy machine

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def drilled(tmp_path_factory):
    with machine("h100x8") as session, serving(session, tmp_path_factory.mktemp("state")) as service:
        service.wait_for_data()
        yield service


def gpu(live: dict, index: int) -> dict:
    return next(device for device in live["devices"] if device["nvml_index"] == index)


def healthy(live: dict) -> bool:
    return (
        live["sampler"]["state"] == "ok"
        and len(live["devices"]) == 8
        and all(device["responding"] for device in live["devices"])
    )


def codes(service) -> set[str]:
    return {finding["code"] for finding in service.get("/api/v1/findings").json()["findings"]}


CASES = {
    "hot:3": lambda live: (
        "temperature.gpu_too_hot" in gpu(live, 3)["finding_codes"] and gpu(live, 3)["throttled"]
    ),
    "throttle:2": lambda live: gpu(live, 2)["throttled"],
    "ecc:1": lambda live: gpu(live, 1)["ecc_uncorrected_volatile"] and gpu(live, 1)["health"] == "fail",
    "lost:5": lambda live: gpu(live, 5)["missing"].get("responding") == "device_lost",
    "hang:6": lambda live: (
        gpu(live, 6)["missing"].get("responding") == "timed_out" and live["sampler"]["state"] == "wedged"
    ),
    "hang-call:4:nvmlDeviceGetPowerUsage": lambda live: True,  # a call that a new driver does not need
    "gone:7": lambda live: live["headline"].endswith("1 of 8 missing"),  # GPU 5 is faulty: its Xid 79 stays
    "init-hang": lambda live: healthy(live),  # who is started is not stopped by it
    "no-driver": lambda live: (
        live["sampler"]["state"] == "failed"
        and next(source for source in live["sources"] if source["name"] == "nvml")["state"]
        == "driver_not_loaded"
    ),
    "version-mismatch": lambda live: live["sampler"]["state"] == "failed",
    "zero-gpus": lambda live: live["sampler"]["state"] == "no_gpu",
}


@pytest.mark.sliced
@pytest.mark.parametrize("fault", CASES)
def test_a_fault_is_seen_and_its_end_too(drilled, fault):
    pid = drilled.process.pid
    drilled.change(f"h100x8+{fault}")
    try:
        drilled.wait(lambda: CASES[fault](drilled.live()), SEEN_SECONDS)
    finally:
        drilled.change("h100x8")
    drilled.wait(lambda: healthy(drilled.live()), SEEN_SECONDS + 2)
    assert drilled.process.pid == pid
    assert drilled.process.poll() is None


def test_a_silent_gpu_keeps_its_row_and_its_last_numbers(drilled):
    before = gpu(drilled.live(), 6)
    drilled.change("h100x8+hang:6")
    try:
        silent = drilled.wait(
            lambda: (row := gpu(drilled.live(), 6))["responding"] is None and row, SEEN_SECONDS
        )
        assert silent["uuid"] == before["uuid"]
        assert silent["utilization_percent"] is None
        assert silent["last_good"]["memory_used_bytes"] == before["memory_used_bytes"]
        assert "gpu.hung" in drilled.wait(lambda: codes(drilled) & {"gpu.hung"}, SEEN_SECONDS)
        live = drilled.live()
        assert live["sampler"]["wedged_call"]
        assert drilled.get("/readyz").status_code == 503
        assert all(gpu(live, index)["responding"] for index in range(8) if index != 6)
    finally:
        drilled.change("h100x8")
    drilled.wait(lambda: healthy(drilled.live()), SEEN_SECONDS + 2)
    kinds = [entry["kind"] for entry in drilled.get("/api/v1/events").json()["entries"]]
    assert {"gpu_silent", "gpu_back", "sampler"} <= set(kinds)


def test_the_api_answers_while_a_call_hangs(drilled):
    drilled.change("h100x8+hang:6")
    try:
        drilled.wait(lambda: drilled.live()["sampler"]["state"] == "wedged", SEEN_SECONDS)
        for _ in range(50):
            # The hung call itself never ends: an answer that waited for it would not come in the client's time.
            assert drilled.get("/api/v1/devices").status_code == 200
    finally:
        drilled.change("h100x8")
    drilled.wait(lambda: healthy(drilled.live()), SEEN_SECONDS + 2)


def test_a_killed_sampler_is_replaced(drilled):
    restarts = drilled.live()["sampler"]["restarts"]
    sampler = _sampler_pid(drilled)
    os.kill(sampler, signal.SIGKILL)
    drilled.wait(
        lambda: (live := drilled.live())["sampler"]["restarts"] > restarts and healthy(live), SEEN_SECONDS
    )
    assert _sampler_pid(drilled) != sampler


def test_a_stopped_sampler_is_replaced(drilled):
    restarts = drilled.live()["sampler"]["restarts"]
    os.kill(_sampler_pid(drilled), signal.SIGSTOP)
    drilled.wait(
        lambda: (live := drilled.live())["sampler"]["restarts"] > restarts and healthy(live), SEEN_SECONDS
    )


def test_an_xid_is_told(drilled):
    drilled.change("h100x8+xid:2:94")
    try:
        drilled.wait(
            lambda: any(
                entry["kind"] == "xid" and entry["xid_code"] == 94 and entry["nvml_index"] == 2
                for entry in drilled.get("/api/v1/events").json()["entries"]
            ),
            SEEN_SECONDS,
        )
    finally:
        drilled.change("h100x8")
    drilled.wait(lambda: 'gpudiag_gpu_xid_events_total{gpu="2"' in drilled.get("/metrics").text, SEEN_SECONDS)


def _sampler_pid(service) -> int:
    """The child that samples; for a moment there may be none, when one takes another's place."""

    def find() -> int | None:
        for pid in service.children():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"gpudiag.sampler.child" in file.read():
                    return pid
        return None

    return service.wait(find, SEEN_SECONDS)
