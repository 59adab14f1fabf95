"""What the service remembers across restarts, and what a disk that fails costs."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.linux.proc import find_process, is_alive
from gpudiag.model.active import PEER_COPY, BandwidthResult, metric_of
from gpudiag.model.documents import loads
from gpudiag.model.history import Sample
from gpudiag.sampler.ring import Ring
from gpudiag.sampler.spill import Spill
from gpudiag.store.history import RunFacts
from tests.api.serving import machine, serving
from tests.stored_runs import record_run
from tests.warm_start import IMPORT_PATH

pytestmark = pytest.mark.timeout(180)
POWER = "/api/v1/history?series=power_draw_watts&device=0&step=1"


def samples(service) -> dict[float, float]:
    series = service.get(POWER).json()
    if not series["devices"]:
        return {}
    values = series["devices"][0]["series"]["power_draw_watts"]
    return {at: value for at, value in zip(series["times"], values, strict=True) if value is not None}


def test_readings_and_events_survive_a_stop(tmp_path):
    with machine("h100x8") as session:
        with serving(session, tmp_path) as service:
            service.wait_for_data()
            service.change("h100x8+xid:2:94")
            service.wait(lambda: any(one["kind"] == "xid" for one in entries(service)))
            before = service.wait(lambda: len(samples(service)) > 2 and samples(service))
        with serving(session, tmp_path) as service:
            after = service.wait(lambda: samples(service))
            assert before.items() <= after.items()
            assert any(one["kind"] == "xid" for one in entries(service))


def test_readings_survive_a_kill_but_for_the_last_seconds(tmp_path):
    with machine("h100x8") as session:
        with serving(session, tmp_path, ends=False) as service:
            service.wait_for_data()
            journal = tmp_path / "service-simulated/h100x8/readings/readings.journal"
            service.wait(lambda: journal.exists() and journal.stat().st_size > 0, 30)
            before = samples(service)
            service.process.send_signal(signal.SIGKILL)
            service.process.wait(10)
        with serving(session, tmp_path) as service:
            after = service.wait(lambda: samples(service))
            oldest = min(before)
            assert oldest in after


def test_a_state_that_cannot_be_written_is_one_sentence_from_the_start(tmp_path):
    folder = tmp_path / "service-simulated"
    folder.write_text("a file where the folder should be")
    with machine("h100x8") as session, serving(session, tmp_path) as service:
        told = (
            f"readings, runs and GPUs are not remembered: {folder}/h100x8 cannot be written: Not a directory"
        )
        assert service.get("/healthz").json()["warnings"] == [told]  # before anything has tried to write
        assert service.log.read_text().count(told) == 1
        service.wait_for_data()
        assert len(service.live()["devices"]) == 8
        assert [line for line in service.log.read_text().splitlines() if '"warning"' in line] == []


def test_a_run_needs_no_state_that_can_be_written(tmp_path):
    """A machine whose disk is full or read-only is one that people want to test."""
    (tmp_path / "service-simulated").write_text("a file where the folder should be")
    with machine("h100x8") as session, serving(session, tmp_path, "--allow-actions") as service:
        service.wait_for_data()
        run = service.start(kind="preflight", plan={"level": "instant"}).raise_for_status().json()
        path = f"/api/v1/runs/{run['id']}"
        ended = service.wait(lambda: (now := service.get(path).json())["ended_at"] and now, 60)
        assert (ended["state"], ended["outcome"], ended["has_report"]) == ("succeeded", "pass", True)
        assert service.get(f"{path}/report").json()["verdict"] == "pass"
        assert "PASS" in service.get(f"{path}/log").text


def test_a_state_folder_that_is_named_and_cannot_be_one_is_refused_at_once(tmp_path):
    place = tmp_path / "file"
    place.touch()
    done = subprocess.run(
        [sys.executable, "-m", "gpudiag", "serve", "--port", "0"],
        env={"PATH": "/usr/bin:/bin", "GPUDIAG_STATE_DIR": str(place), "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 2
    first, hint = done.stderr.splitlines()
    assert first == f"gpudiag: the state folder {place} is no folder and cannot be made: File exists"
    assert "GPUDIAG_STATE_DIR=DIR" in hint


def test_without_polling_nvml_is_asked_nothing(tmp_path):
    with machine("h100x8") as session, serving(session, tmp_path, "--no-poll") as service:
        service.wait_for_data()
        live = service.live()
        assert live["sampler"]["state"] == "off"
        assert session.call_counts() == {}


def test_a_machine_without_a_gpu_says_so(tmp_path):
    with machine("none") as session, serving(session, tmp_path) as service:
        live = service.wait(lambda: service.get("/api/v1/devices").status_code == 200 and service.live())
        assert live["devices"] == []
        assert live["sampler"]["state"] == "failed"
        assert live["sampler"]["reason"]
        assert live["headline"] == "no GPU"
        assert live["verdict"] == "error"  # as the bare command and preflight say (decision 0001)
        assert service.get("/healthz").status_code == 200


def test_nothing_is_left_when_it_stops(tmp_path):
    with machine("h100x8") as session, serving(session, tmp_path) as service:
        service.wait_for_data()
        children = service.children()
        assert children
    # What the children had started themselves ends with them, a moment later.
    until = time.monotonic() + 20
    while any(is_alive(pid) for pid in children) and time.monotonic() < until:
        time.sleep(0.05)
    assert [what(pid) for pid in children if is_alive(pid)] == []


def what(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return f"{pid} {find_process(pid)} {command}"


def test_the_last_good_run_is_compared_with_and_what_it_measured_is_shown(tmp_path):
    with machine("h100x8") as session:
        with serving(session, tmp_path) as service:
            service.wait_for_data()
            now = loads(service.get("/api/v1/snapshot").text)
        source, target = (device.id.uuid for device in now.devices[:2])
        copy = BandwidthResult(PEER_COPY, 0, source, 1 << 28, 8, 1e-3, 1e-3, 3.7e11, 0, False, 1, target)
        alone = Sample(metric_of(copy), copy.bytes_per_second, "B/s", source)
        crowded = Sample(metric_of(replace(copy, concurrent=True)), 1.0, "B/s", source)
        was = RunFacts(replace(now, driver_version="1.2.3"), "preflight", "pass", (crowded, alone), good=True)
        assert record_run(str(tmp_path / "history.db"), was, 30.0) == ""
        with serving(session, tmp_path) as service:
            service.wait_for_data()
            found = service.wait(lambda: findings(service, "machine.changed"))
            assert "1.2.3" in found[0]["message"]
            links = service.get("/api/v1/topology").json()["links"]
    measured = {(link["from_uuid"], link["to_uuid"]): link["measured"] for link in links if link["measured"]}
    assert measured.keys() == {(source, target)}
    assert measured[source, target]["value"] == 3.7e11


def findings(service, code: str) -> list[dict]:
    return [one for one in service.get("/api/v1/findings").json()["findings"] if one["code"] == code]


def test_a_fast_tick_takes_at_most_twelve_calls_a_gpu(tmp_path):
    with machine("h100x8") as session, serving(session, tmp_path) as service:
        service.wait_for_data()

        def counts() -> tuple[int, int] | None:
            """All calls, and those of slow ticks and of nvidia-smi (for GPUtil) alone.

            None in the middle of a tick.
            """
            calls = session.call_counts()
            time.sleep(0.3)
            if session.call_counts() != calls:
                return None
            apart = ("nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetDisplayActive")
            return sum(calls.values()), sum(calls.get(name, 0) for name in apart)

        total, others = service.wait(lambda: service.live() and counts())
        for _ in range(40):
            service.live()  # somebody looks, so it samples every second
            more, still = service.wait(
                lambda before=total: (now := counts()) and now[0] != before and now, 10
            )
            if still == others:
                assert more - total <= 12 * 8 + 2  # and the wait for events
                break
            total, others = more, still
        else:
            raise AssertionError("no fast tick was seen")


def entries(service) -> list[dict]:
    return service.get("/api/v1/events").json()["entries"]


def test_a_second_service_on_the_same_state_is_refused_in_a_sentence(tmp_path):
    with machine("h100x8") as session, serving(session, tmp_path) as service:
        service.wait_for_data()
        second = subprocess.run(
            [sys.executable, "-m", "gpudiag", "serve", "--port", "0"],
            capture_output=True,
            text=True,
            timeout=90,
            env={**session.environment, "GPUDIAG_STATE_DIR": str(tmp_path), "PYTHONPATH": IMPORT_PATH},
        )
        assert second.returncode == 2
        assert service.url in second.stderr
        assert "GPUDIAG_STATE_DIR" in second.stderr
        assert len(service.live()["devices"]) == 8
    with machine("h100x8") as session, serving(session, tmp_path) as service:  # once it has ended
        service.wait_for_data()


def test_a_simulated_machine_remembers_apart_from_another(tmp_path):
    with machine("h100x8") as session, serving(session, tmp_path) as service:
        service.wait_for_data()
        service.wait(lambda: samples(service), 30)
    with machine("a100x8") as session, serving(session, tmp_path) as service:
        service.wait_for_data()
        service.wait(lambda: samples(service), 30)
        known = {device["uuid"] for device in service.get("/api/v1/history").json()["devices"]}
        assert known == {device["uuid"] for device in service.live()["devices"]}


def test_a_history_from_the_future_does_not_silence_the_present(tmp_path):
    folder = tmp_path / "service-simulated/h100x8/readings"
    with machine("h100x8") as session:
        with serving(session, tmp_path) as service:
            service.wait_for_data()
            uuid = service.live()["devices"][0]["uuid"]
        ahead = time.time() + 30 * 86400
        ring = Ring()
        ring.add(uuid, ahead, {"temperature_celsius": 99.0})
        Spill(folder).save(ring)
        with serving(session, tmp_path) as service:
            service.wait_for_data()
            found = service.wait(lambda: samples(service), 30)
            assert max(found) < time.time() + 5
