import json
import os
import signal
import subprocess
import sys

import pytest

from gpudiag.linux.proc import is_alive
from gpudiag.model.run import ENDED
from gpudiag.render.report_formats import REPORT_FORMATS
from tests.api.serving import descendants, machine, serving

SMALL = {"backend": "gloo", "nproc": 2, "max_bytes": 64}
LONG = {"backend": "gloo", "nproc": 2, "max_bytes": 1 << 20, "iterations": 100_000}
RUN_SECONDS = 90.0

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]


def wait_for_end(service, identity: str, seconds: float = RUN_SECONDS) -> dict:
    return service.wait(lambda: (run := service.run(identity))["state"] in ENDED and run, seconds)


def wait_until_running(service, identity: str) -> dict:
    return service.wait(lambda: (run := service.run(identity))["stage"] == "measure" and run, RUN_SECONDS)


def formats_answered(service, run: dict) -> list[str]:
    """The formats in which the service writes the run's report.

    It says of each other one that it does not.
    """
    statuses = {
        name: service.get(f"/api/v1/runs/{run['id']}/report?format={name}").status_code
        for name in REPORT_FORMATS
    }
    assert set(statuses.values()) <= {200, 406}
    return sorted((name for name in statuses if statuses[name] == 200), key=run["report_formats"].index)


def test_a_run_is_started_followed_and_its_report_read(served):
    started = served.start(kind="nccl-test", plan=SMALL)
    assert started.status_code == 201
    run = wait_for_end(served, started.json()["id"])
    assert (run["state"], run["outcome"], run["exit_status"]) == ("succeeded", "pass", 0)
    assert run["lock"] == ["host"]
    assert run["done"] == run["planned"] > 0
    report = served.get(f"/api/v1/runs/{run['id']}/report").json()
    assert (report["schema"], report["outcome"]) == ("gpudiag.collective/1", "pass")
    assert served.get(f"/api/v1/runs/{run['id']}/report?format=text").text.startswith("PASS")
    assert formats_answered(served, run) == run["report_formats"] == ["text", "json"]
    assert "PASS" in served.get(f"/api/v1/runs/{run['id']}/log").text
    events = served.get(f"/api/v1/runs/{run['id']}/events").json()["events"]
    assert events[-1]["event"]["outcome"] == "pass"
    assert served.get(f"/api/v1/runs/{run['id']}/events?since={events[-1]['number']}").json()["events"] == []
    refused = served.get(f"/api/v1/runs/{run['id']}/comparison?before={run['id']}")
    assert (refused.status_code, refused.json()["code"]) == (406, "run.not_compared")
    kinds = [entry["kind"] for entry in served.get("/api/v1/events").json()["entries"]]
    assert "run" in kinds


@pytest.mark.sliced
def test_training_is_started_followed_and_its_report_read(served):
    plan = {"backend": "gloo", "nproc": 2, "steps": 2, "strategy": ["ddp"]}
    started = served.start(kind="train", plan=plan)
    assert started.status_code == 201, started.text
    run = wait_for_end(served, started.json()["id"])
    assert (run["state"], run["outcome"], run["exit_status"]) == ("succeeded", "pass", 0)
    assert (run["done"], run["planned"], run["stage"]) == (1, 1, "measure")
    told = [entry["event"] for entry in served.get(f"/api/v1/runs/{run['id']}/events").json()["events"]]
    places = [event["ranks"] for event in told if event["kind"] == "ranks"]
    assert [[rank["rank"] for rank in ranks] for ranks in places] == [[0, 1]]  # only the newest is kept
    told = [event for event in told if event["kind"] != "ranks"]
    assert [event["stage"] for event in told if event["kind"] == "stage"] == ["import", "verify", "measure"]
    assert [event["kind"] for event in told[3:]] == ["result", "outcome"]
    report = served.get(f"/api/v1/runs/{run['id']}/report").json()
    assert (report["schema"], report["outcome"]) == ("gpudiag.training/1", "pass")
    assert told[3]["strategy"] == report["strategies"][0]
    assert report["strategies"][0]["verified"] is True
    assert served.get(f"/api/v1/runs/{run['id']}/report?format=text").text.startswith("PASS")
    assert "| ddp |" in served.get(f"/api/v1/runs/{run['id']}/report?format=markdown").text
    assert formats_answered(served, run) == run["report_formats"] == ["text", "json", "markdown"]


def test_two_reports_are_compared_as_the_command_compares_them(served):
    ids = []
    for _ in range(2):
        started = served.start(kind="preflight", plan={"level": "instant"}, queue=True)
        ids.append(wait_for_end(served, started.json()["id"])["id"])
    before, now = ids
    compared = served.get(f"/api/v1/runs/{now}/comparison?before={before}").raise_for_status().json()
    assert (compared["schema"], compared["same_machine"]) == ("gpudiag.comparison/1", True)
    assert compared["before"]["path"] == f"run {before}"
    assert compared["alike"] > 50
    assert served.get(f"/api/v1/runs/{now}/comparison?before=20200101-000000-abcdef").status_code == 404
    assert served.get(f"/api/v1/runs/{now}/comparison").status_code == 422
    kind = served.get("/api/v1/runs").json()["kinds"][0]
    assert [preset["name"] for preset in kind["presets"]] == ["quick", "standard", "before a training"]


@pytest.mark.sliced
def test_one_run_at_a_time_the_next_waits_or_is_refused_and_a_run_can_be_cancelled(served):
    first = served.start(kind="nccl-test", plan=LONG).json()
    refused = served.start(kind="nccl-test", plan=SMALL)
    assert (refused.status_code, refused.json()["held_by"]) == (409, first["id"])
    waiting = served.start(kind="nccl-test", plan=SMALL, queue=True)
    assert waiting.status_code == 202
    assert waiting.json()["queue_position"] == 1
    wait_until_running(served, first["id"])
    cancelled = served.client.post(f"/api/v1/runs/{first['id']}/cancel", headers=served.act)
    assert cancelled.status_code == 202
    assert wait_for_end(served, first["id"], 20)["state"] == "cancelled"
    assert wait_for_end(served, waiting.json()["id"])["state"] == "succeeded"
    again = served.client.post(f"/api/v1/runs/{first['id']}/cancel", headers=served.act)
    assert again.status_code == 409


def test_a_flood_of_runs_is_refused(served):
    first = served.start(kind="nccl-test", plan=LONG).json()
    answers = [served.start(kind="nccl-test", plan=SMALL, queue=True) for _ in range(20)]
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(202) == 16
    assert set(statuses[16:]) == {429}
    for run in served.get("/api/v1/runs?state=queued").json()["runs"]:
        served.client.post(f"/api/v1/runs/{run['id']}/cancel", headers=served.act)
    served.client.post(f"/api/v1/runs/{first['id']}/cancel", headers=served.act)
    assert wait_for_end(served, first["id"], 20)["state"] == "cancelled"


@pytest.mark.sliced
def test_gpus_that_others_use_are_left_alone_unless_forced(served):
    refused = served.start(kind="nccl-test", plan={"backend": "nccl"}, gpus=["0"])
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (409, "run.gpus_busy")
    assert problem["processes"][0]["user"] == "ann"
    forced = served.start(kind="nccl-test", plan={"backend": "nccl", "nproc": 1}, gpus=["0"], force=True)
    assert forced.status_code == 201
    run = wait_for_end(served, forced.json()["id"])
    assert run["state"] == "failed"  # a simulated GPU computes nothing, and that is said
    assert run["reason"]


def test_the_service_stops_and_its_run_with_it(tmp_path):
    with machine() as session, serving(session, tmp_path, "--allow-actions") as service:
        service.wait_for_data()
        run = service.start(kind="nccl-test", plan=LONG).json()
        wait_until_running(service, run["id"])
        left = service.children()
        assert left
    assert not [pid for pid in left if is_alive(pid)]
    with machine() as session, serving(session, tmp_path, "--allow-actions") as service:
        service.wait(lambda: service.run(run["id"]).get("state") == "cancelled")


@pytest.mark.sliced
def test_killed_in_the_middle_of_a_run_it_says_so_at_the_next_start(tmp_path):
    with machine() as session:
        with serving(session, tmp_path, "--allow-actions", ends=False) as service:
            service.wait_for_data()
            done = service.start(kind="nccl-test", plan=SMALL).json()
            assert wait_for_end(service, done["id"])["state"] == "succeeded"
            run = service.start(kind="nccl-test", plan=LONG).json()
            wait_until_running(service, run["id"])
            left = descendants(service.process.pid)
            service.process.send_signal(signal.SIGKILL)
            service.process.wait(10)
            service.wait(lambda: not [pid for pid in left if is_alive(pid)], 10)
        with serving(session, tmp_path, "--allow-actions") as service:
            service.wait(lambda: service.run(run["id"]).get("state") == "lost")
            earlier = service.run(done["id"])
            assert (earlier["state"], earlier["outcome"]) == ("succeeded", "pass")
            assert service.get(f"/api/v1/runs/{done['id']}/report").json()["outcome"] == "pass"


@pytest.mark.sliced
def test_a_run_names_an_interpreter_of_the_operators_list_and_says_why_it_failed(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    broken.chmod(0o755)
    named = ("--python", f"own={sys.executable}", "--python", f"broken={broken}")
    with machine() as here, serving(here, tmp_path / "state", "--allow-actions", *named) as service:
        service.wait_for_data()
        assert service.get("/api/v1/runs").json()["interpreters"] == ["broken", "own"]
        for refused in ("torch28", sys.executable):
            answer = service.start(kind="nccl-test", plan=SMALL, interpreter=refused)
            assert (answer.status_code, "there is no interpreter" in answer.text) == (422, True)
        run = wait_for_end(
            service, service.start(kind="nccl-test", plan=SMALL, interpreter="own").json()["id"]
        )
        assert (run["state"], f"--python {sys.executable}" in run["command"]) == ("succeeded", True)
        failed = service.start(kind="nccl-test", plan=SMALL, interpreter="broken").json()
        reason = wait_for_end(service, failed["id"])["reason"]
        assert "Next:" not in reason
        assert str(broken) in reason or "start" in reason


def test_a_job_of_gpudiag_run_is_a_run_once_it_has_ended(tmp_path):
    with machine() as session, serving(session, tmp_path) as service:
        service.wait_for_data()
        environment = {**os.environ, **session.environment, "GPUDIAG_STATE_DIR": str(tmp_path)}
        job = [sys.executable, "-m", "gpudiag", "run", "--verdict", str(tmp_path / "v.json"), "--", "false"]
        assert subprocess.run(job, env=environment, capture_output=True, timeout=120).returncode == 1
        (run,) = service.wait(lambda: service.get("/api/v1/runs?kind=run").json()["runs"])
        assert (run["state"], run["outcome"], run["exit_status"]) == ("succeeded", "fail", 1)
        assert run["deadline_seconds"] is None
        report = service.get(f"/api/v1/runs/{run['id']}/report").raise_for_status().json()
        assert report == json.loads((tmp_path / "v.json").read_text())
        assert formats_answered(service, run) == run["report_formats"] == ["text", "json"]
        assert service.get(f"/api/v1/runs/{run['id']}/log").text == ""
        messages = [entry["message"] for entry in service.get("/api/v1/events").json()["entries"]]
        assert f"run {run['id']} ended: fail" in messages
