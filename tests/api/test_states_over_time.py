"""The machine over time, as the service tells it: verdict, rows, timeline, metrics.

docs/api.md has the table.
"""

import contextlib
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from gpudiag.compat import UTC, parse_iso_time
from gpudiag.model.service import Findings, SamplerState
from gpudiag.sampler.picture import NvmlPicture
from gpudiag.service.live import SamplerFacts, build_live
from gpudiag.simulate.loader import load_scenario
from tests.api.serving import Served, machine, serving
from tests.browser.stub_documents import read_machine
from tests.warm_start import IMPORT_PATH

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def watched(tmp_path):
    with machine("h100x8") as session, serving(session, tmp_path) as service:
        service.wait_for_data()
        service.wait(lambda: service.live()["verdict"] == "pass")
        yield service


def up(service) -> dict[str, float]:
    found = re.findall(
        r'^gpudiag_gpu_up\{.*?uuid="([^"]+)".*?\} (\d)', service.get("/metrics").text, re.MULTILINE
    )
    return {uuid: float(value) for uuid, value in found}


def metric(service, name: str) -> float:
    """The value of a metric that has one sample; of several, the sum."""
    found = re.findall(rf"^{re.escape(name)}(?:{{.*?}})? (\S+)$", service.get("/metrics").text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def state_in_metrics(service) -> set[str]:
    return set(
        re.findall(
            r'^gpudiag_sampler_state\{.*?state="(\w+)".*?\} 1', service.get("/metrics").text, re.MULTILINE
        )
    )


def pages(service) -> set[str]:
    """The codes of the present findings that keep jobs off the machine, which is what the shipped rules page
    on.
    """
    return {one["code"] for one in labels_of(service, "gpudiag_finding") if one["blocks_jobs"] == "true"}


def codes(service) -> set[str]:
    return {finding["code"] for finding in service.get("/api/v1/findings").json()["findings"]}


def timeline(service) -> list[tuple[str, str]]:
    return [(entry["kind"], entry["message"]) for entry in service.get("/api/v1/events").json()["entries"]]


def kinds(service) -> list[str]:
    return [kind for kind, _ in timeline(service)]


def labels_of(service, name: str) -> list[dict[str, str]]:
    """The labels of each sample of that metric."""
    lines = re.findall(rf"^{name}\{{(.*)\}} \S+$", service.get("/metrics").text, re.MULTILINE)
    return [dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line)) for line in lines]


def power_seen(service) -> dict[str, set[float]]:
    """What the history has of each GPU, by UUID; on an idle machine that is one figure, its own."""
    series = service.get("/api/v1/history?series=power_draw_watts&step=1").json()
    return {
        row["uuid"]: {value for value in row["series"]["power_draw_watts"] if value is not None}
        for row in series["devices"]
    }


def power_by_uuid(service) -> dict[str, str]:
    """The UUID that each sample of the power stands for: its own label, else that of the index's first
    holder.
    """
    return {one["gpu"]: one.get("uuid", "") for one in labels_of(service, "gpudiag_gpu_power_watts")}


def test_a_gpu_that_vanishes_keeps_its_row_and_is_a_finding(watched):
    before = [device["uuid"] for device in watched.live()["devices"]]
    since = watched.live()["verdict_since"]
    gone, bus_id = before[3], watched.live()["devices"][3]["bus_id"]
    own_power = watched.wait(lambda: len(seen := power_seen(watched)) == 8 and seen)
    watched.change("h100x8+gone:3")
    live = watched.wait(lambda: (now := watched.live())["verdict"] == "fail" and now, 40)
    assert live["headline"] == "7 healthy, 1 of 8 missing"
    assert live["verdict_since"] > since
    assert len(live["devices"]) == 8
    (row,) = [device for device in live["devices"] if device["uuid"] == gone]
    assert row["responding"] is None
    assert row["health"] == "fail"
    assert "gpu.gone" in row["finding_codes"]
    watched.wait(lambda: codes(watched) == {"gpu.gone"}, 40)  # what GPUtil and torch saw before is forgotten
    assert watched.live()["verdict_since"] == live["verdict_since"], "its first moment, however long it lasts"
    assert up(watched)[gone] == 0
    assert sum(up(watched).values()) == 7
    assert "gpu_lost" in kinds(watched)
    assert pages(watched) == {"gpu.gone"}
    told = watched.wait(
        lambda: [one for one in labels_of(watched, "gpudiag_finding") if one["code"] == "gpu.gone"]
    )
    (finding,) = told
    assert (finding["gpu"], finding["uuid"], finding["bus_id"]) == ("3", gone, bus_id)
    assert {"host", "serial", "title", "remedy"} <= finding.keys()
    # The index that it had is another's by now, which says so: no series goes on as another GPU's.
    assert {"gpu": "3", "uuid": gone, "host": finding["host"]} in labels_of(watched, "gpudiag_gpu_up")
    assert power_by_uuid(watched) == {"0": "", "1": "", "2": "", **dict(zip("3456", before[4:], strict=True))}
    watched.change("h100x8")
    watched.wait(lambda: watched.live()["verdict"] == "pass", 40)
    assert up(watched)[gone] == 1
    assert pages(watched) == set()
    assert labels_of(watched, "gpudiag_finding") == []
    assert set(power_by_uuid(watched).values()) == {""}
    about = [
        (entry["kind"], entry["uuid"], entry["nvml_index"])
        for entry in watched.get("/api/v1/events").json()["entries"]
        if entry["kind"].startswith("gpu_")
    ]
    assert about == [("gpu_lost", gone, 3), ("gpu_back", gone, 3)]
    assert power_seen(watched) == own_power


SWAPPED = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.mark.sliced
def test_a_gpu_that_another_takes_the_place_of_leaves_it_nothing_of_its_own(watched, tmp_path):
    before, others = watched.live()["devices"][3]["uuid"], set(up(watched))
    own_power = watched.wait(lambda: len(seen := power_seen(watched)) == 8 and seen)
    board = tmp_path / "swapped.toml"
    board.write_text(f'base = "h100x8"\n[gpus.3]\nuuid = "{SWAPPED}"\npower_draw_watts = 111.0\n')
    watched.change(str(board))
    watched.wait(lambda: SWAPPED in up(watched), 40)
    assert up(watched) == dict.fromkeys(others - {before} | {SWAPPED}, 1.0)
    watched.wait(lambda: SWAPPED in power_seen(watched))
    assert power_seen(watched) == {**own_power, SWAPPED: {111.0}}
    assert power_by_uuid(watched)["3"] == SWAPPED
    (told,) = [message for kind, message in timeline(watched) if kind.startswith("gpu_")]
    assert told == f"GPU 3 is another GPU now: {SWAPPED} is in the place of {before}"
    watched.wait(lambda: watched.live()["verdict"] == "pass", 40)


@pytest.mark.sliced
def test_two_gpus_that_vanish_are_two_of_eight(watched):
    watched.change("h100x8+gone:3+gone:5")
    watched.wait(lambda: watched.live()["headline"] == "6 healthy, 2 of 8 missing", 40)
    assert list(up(watched).values()).count(0) == 2


def test_a_driver_that_goes_is_not_green_keeps_the_rows_and_blames_no_gpu(watched):
    uuids = {device["uuid"] for device in watched.live()["devices"]}
    watched.change("h100x8+no-driver")
    watched.wait(lambda: watched.live()["verdict"] == "fail", 40)
    live = watched.live()
    assert {device["uuid"] for device in live["devices"]} == uuids
    assert [device["nvml_index"] for device in live["devices"]] == list(range(8))
    assert set(up(watched)) == uuids
    assert set(up(watched).values()) == {0.0}
    assert not {"gpu_lost", "gpu_silent"} & set(kinds(watched))
    watched.change("h100x8")
    watched.wait(lambda: watched.live()["verdict"] == "pass", 40)
    assert set(up(watched).values()) == {1.0}
    assert not {"gpu_lost", "gpu_silent", "gpu_back"} & set(kinds(watched)), timeline(watched)
    assert kinds(watched).count("driver") == 2


@pytest.mark.sliced
def test_variables_that_are_no_text_end_nothing(tmp_path):
    """A path of an older machine in another encoding than UTF-8: the service ended at its first tick."""
    with machine("h100x8") as session:
        session.environment["NCCL_SOCKET_IFNAME"] = os.fsdecode(b"J\xf6rg0")
        session.environment["NCCL_DEBUG_FILE"] = os.fsdecode(b"/home/J\xf6rg/nccl.log")
        with serving(session, tmp_path) as service:
            service.wait_for_data()
            found = service.wait(lambda: service.get("/api/v1/findings").json()["findings"])
            assert "network.wrong_interface" in [finding["code"] for finding in found]
            for path in ("devices", "checks", "snapshot", "poll", "processes", "topology"):
                assert service.get(f"/api/v1/{path}").status_code == 200, path
            assert 'subject="NCCL_SOCKET_IFNAME"' in service.get("/metrics").text
            assert "Traceback" not in service.log.read_text()


def test_a_sampler_that_is_killed_blames_no_gpu(watched):
    for _ in range(3):
        (sampler,) = [pid for pid in watched.children() if b"sampler.child" in command(pid)]
        os.kill(sampler, signal.SIGKILL)
        time.sleep(2.0)
    watched.wait(
        lambda: watched.live()["sampler"]["state"] in ("ok", "slow") and watched.live()["verdict"] == "pass",
        40,
    )
    assert not {"gpu_lost", "gpu_silent", "gpu_back"} & set(kinds(watched)), timeline(watched)
    assert "sampler" in kinds(watched)
    assert metric(watched, "gpudiag_sampler_restarts_total") >= 3
    assert set(up(watched).values()) == {1.0}
    assert len(watched.live()["devices"]) == 8
    assert pages(watched) == set()


@pytest.mark.sliced
def test_a_sampler_that_stands_still_is_replaced(watched):
    (sampler,) = [pid for pid in watched.children() if b"sampler.child" in command(pid)]
    os.kill(sampler, signal.SIGSTOP)
    watched.wait(lambda: metric(watched, "gpudiag_sampler_restarts_total") >= 1, 40)
    watched.wait(lambda: watched.live()["verdict"] == "pass", 40)
    assert not {"gpu_lost", "gpu_silent", "gpu_back"} & set(kinds(watched)), timeline(watched)
    assert len(watched.live()["devices"]) == 8
    assert pages(watched) == set()


def test_numbers_that_are_old_are_not_green(watched):
    """A sampler that is stopped and whose successors are, too."""
    stopped: set[int] = set()

    def stop_all() -> bool:
        for pid in watched.children():
            if pid not in stopped and b"sampler.child" in command(pid):
                os.kill(pid, signal.SIGSTOP)
                stopped.add(pid)
        live = watched.live()
        return live["verdict"] == "error" and "old" in live["headline"]

    try:
        watched.wait(stop_all, 60)
        assert watched.get("/readyz").status_code == 503
        assert metric(watched, "gpudiag_collect_success") == 0
        live = watched.live()
        assert len(live["devices"]) == 8
        assert all(device["last_good_at"] for device in live["devices"])
        assert "sampler" in kinds(watched)
    finally:
        for pid in stopped:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGCONT)
    watched.wait(lambda: watched.live()["verdict"] == "pass", 60)


def test_a_gpu_that_hangs_and_recovers_is_told_once_each(watched):
    watched.change("h100x8+hang:6")
    watched.wait(lambda: "gpu.hung" in codes(watched) and watched.live()["verdict"] == "fail", 40)
    row = watched.live()["devices"][6]
    assert row["missing"]["responding"] == "timed_out"
    assert row["last_good"]["temperature_celsius"]
    assert list(up(watched).values()).count(0) == 1
    assert pages(watched) == {"gpu.hung"}
    watched.change("h100x8")
    watched.wait(lambda: watched.live()["verdict"] == "pass", 60)
    watched.wait(lambda: "gpu_back" in kinds(watched))
    about = [(kind, message) for kind, message in timeline(watched) if kind.startswith("gpu_")]
    assert [kind for kind, _ in about] == ["gpu_silent", "gpu_back"], about
    assert set(up(watched).values()) == {1.0}
    assert pages(watched) == set()
    assert "within 0.0 s" not in about[0][1]


@pytest.mark.sliced
def test_a_sampler_that_cannot_be_started_says_so_and_does_not_blame_the_driver(tmp_path, monkeypatch):
    """As after an update that broke an import: its process ends before it says anything."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if 'gpudiag.sampler.child' in sys.orig_argv and os.path.exists({str(broken / 'is_broken')!r}):\n"
        "    os._exit(3)\n"
    )
    (broken / "is_broken").touch()
    monkeypatch.setattr("tests.api.serving.IMPORT_PATH", f"{broken}:{IMPORT_PATH}")
    with machine("h100x8") as session, serving(session, tmp_path / "state") as service:
        live = service.wait(
            lambda: (now := told(service)) and now["sampler"]["state"] == "failed" and now, 60
        )
        assert live["sampler"]["reason"].startswith("the sampler's process ends before its first message")
        assert "exit status 3" in live["sampler"]["reason"]
        assert "gpudiag.sampler.child" in live["sampler"]["reason"]
        live = service.wait(lambda: (now := told(service))["verdict"] is not None and now, 60)
        assert live["verdict"] == "error"
        assert state_in_metrics(service) == {"failed"}
        assert "gpu.hung" not in codes(service)
        assert not {"gpu_lost", "gpu_silent", "gpu_back"} & set(kinds(service)), timeline(service)
        (broken / "is_broken").unlink()
        service.wait(lambda: service.live()["verdict"] == "pass", 60)
        assert not {"gpu_lost", "gpu_silent", "gpu_back"} & set(kinds(service)), timeline(service)


def told(service) -> dict | None:
    answer = service.get("/api/v1/devices")
    return answer.json() if answer.status_code == 200 else None


def test_nothing_is_green_where_nvml_is_not_asked(tmp_path):
    with machine("h100x8") as session, serving(session, tmp_path, "--no-poll") as service:
        service.wait_for_data()
        live = service.wait(lambda: (now := service.live())["verdict"] is not None and now)
        assert live["verdict"] == "error"
        assert live["headline"] == "NVML is not asked"
        assert live["devices"] == []
        assert up(service) == {}


def test_a_test_of_ours_that_stops_the_sampling_leaves_nothing_green():
    """The page would say so by itself; the API says it first, and says why."""
    picture, facts = NvmlPicture(), SamplerFacts(True, True, None, 1.0, 0, 0, None)
    findings = Findings(1, "pass", datetime.now(UTC), ())
    snapshot = read_machine("h100x8").snapshot
    tick = {
        "kind": "tick",
        "at": time.time(),
        "seconds": 0.01,
        "slow": {},
        "fast": {},
        "peers": {},
        "late": {},
        "interval": 1.0,
        "waited": 0.0,
        "longest": ("nvmlDeviceGetName", 0.001),
    }
    picture.add(tick)
    assert build_live(snapshot, picture, facts, findings, {}, 1).verdict == "pass"
    picture._ticked_at -= 60.0
    live = build_live(snapshot, picture, facts, findings, {}, 2)
    assert live.sampler.state is SamplerState.PAUSED
    assert live.verdict == "error"
    assert live.headline == "the numbers are 60 s old: a bandwidth test runs and must not be disturbed"


@pytest.mark.sliced
def test_a_service_that_is_started_without_the_driver_is_green_once_it_is_loaded(tmp_path):
    with machine("h100x8+no-driver") as session, serving(session, tmp_path) as service:
        live = service.wait(lambda: (now := told(service)) and now["verdict"] is not None and now, 40)
        assert live["verdict"] == "fail"
        # The PCI bus has them, once the host was read.
        live = service.wait(lambda: len((now := service.live())["devices"]) == 8 and now, 40)
        assert all(row["responding"] is None for row in live["devices"])
        assert set(up(service).values()) <= {0.0}
        service.change("h100x8")
        service.wait(lambda: service.live()["verdict"] == "pass", 60)
        assert len(service.live()["devices"]) == 8
        assert "gpu_back" not in kinds(service)
        assert pages(service) == set()


def test_a_service_that_is_restarted_tells_nothing_of_gpus_that_are_well_and_knows_those_that_were_there(
    tmp_path,
):
    with machine("h100x8") as session:
        for _ in (1, 2):
            with serving(session, tmp_path) as service:
                service.wait_for_data()
                service.wait(lambda service=service: service.live()["verdict"] == "pass", 40)
                assert {kind for kind in kinds(service) if kind.startswith(("gpu_", "driver"))} == set()
                were = {one["uuid"]: one["gpu"] for one in labels_of(service, "gpudiag_gpu_up")}
                last = metric(service, "gpudiag_collect_last_success_timestamp_seconds")
        session.update(load_scenario("h100x8+gone:3+no-driver"))
        with serving(session, tmp_path) as service:
            service.wait(lambda: (now := told(service)) and len(now["devices"]) == 8, 40)
            service.wait(lambda: told(service)["verdict"] == "fail", 40)
            assert {one["uuid"]: one["gpu"] for one in labels_of(service, "gpudiag_gpu_up")} == were
            assert set(up(service).values()) == {0.0}
            seen = {one["last_good_at"] for one in service.live()["devices"]}
            assert None not in seen  # by the service before: a row says since when its GPU is away
            assert all(
                datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() <= last + 1 for at in seen
            )
            assert {one["state"] for one in labels_of(service, "gpudiag_gpu_status")} == {"error"}
            # And what the kernel log has of the GPU that is gone, once that is read; nothing of the others.
            found = {one["code"] for one in labels_of(service, "gpudiag_finding")}
            assert {"nvml.driver_not_loaded"} <= found <= {"nvml.driver_not_loaded", "kernel.pcie_link_down"}
            assert [one["state"] for one in labels_of(service, "gpudiag_nvml_state")] == ["driver_not_loaded"]
            assert last <= metric(service, "gpudiag_collect_last_success_timestamp_seconds") < time.time()
            service.change("h100x8+gone:3")
            service.wait(lambda: "gpu.gone" in codes(service), 40)
            assert sorted(up(service).values()) == [0.0] + [1.0] * 7
            assert {one["gpu"] for one in labels_of(service, "gpudiag_finding")} == {"3"}


AHEAD_SECONDS = 30 * 86400
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The wall clock of this process, moved by the seconds in a file. */
static volatile double *offset;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("MOVED_CLOCK"), O_RDONLY);
    if (file >= 0) offset = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (!result && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += (long)*offset;
    return result;
}
"""


@contextlib.contextmanager
def moved_clock(folder: Path, session) -> Iterator[mmap.mmap]:
    """A wall clock for everything that runs on that machine; write seconds to move it."""
    source, library, file = folder / "clock.c", folder / "clock.so", folder / "moved"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    file.write_bytes(struct.pack("d", 0.0))
    session.environment.update(MOVED_CLOCK=str(file), LD_PRELOAD=str(library))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 8) as moved:
        yield moved


@pytest.mark.sliced
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, which moves the clock of the service")
def test_a_clock_that_is_set_ahead_and_back_changes_no_verdict_and_silences_nothing(tmp_path):
    with (
        machine("h100x8") as session,
        moved_clock(tmp_path, session) as moved,
        serving(session, tmp_path / "state") as service,
    ):
        service.wait_for_data()
        service.wait(lambda: service.live()["verdict"] == "pass", 40)
        for seconds in (AHEAD_SECONDS, 0.0):
            before = service.live()["sequence"]
            moved[:] = struct.pack("d", seconds)
            said = set()

            def has_ticked(before=before, said=said) -> bool:
                live = service.live()
                said.add((live["verdict"], live["headline"]))
                return live["sequence"] > before + 6

            service.wait(has_ticked, 40)
            assert said == {("pass", "8 healthy")}
            assert abs(at_of(service) - time.time() - seconds) < 3600
            assert service.get("/readyz").status_code == 200
            assert set(up(service).values()) == {1.0}
            assert pages(service) == set()
            assert metric(service, "gpudiag_collect_success") == 1
            shown = service.wait(lambda: newest_reading(service), 40)
            assert abs(shown - time.time() - seconds) < 3600
        assert {kind for kind in kinds(service) if kind.startswith(("gpu_", "driver"))} == set()
        service.change("h100x8+xid:2:94")  # the present is told, although the timeline was in the future
        service.wait(lambda: "xid" in kinds(service), 40)
        service.change("h100x8")


def at_of(service: Served) -> float:
    return parse_iso_time(service.live()["at"]).timestamp()


def newest_reading(service: Served) -> float | None:
    """When the newest reading of the first GPU was taken, by what the history shows for the last hour."""
    answer: httpx.Response = service.get("/api/v1/history?series=power_draw_watts&device=0&step=1")
    series = answer.json()
    if not series["devices"]:
        return None
    values = series["devices"][0]["series"]["power_draw_watts"]
    return max(
        (at for at, value in zip(series["times"], values, strict=True) if value is not None), default=None
    )


def command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
