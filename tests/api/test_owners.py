"""Who has which GPU, as the whole service tells it: pods by a kubelet that speaks gRPC, Slurm jobs by their
processes.
"""

import re
from pathlib import Path

import pytest

from tests.api.serving import machine, serving
from tests.kubelet.fake_kubelet import fake_kubelet, pod

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'gpudiag[kubernetes]'")

SECONDS = 90.0  # a child that imports grpc on a busy machine, and its period of 10 s


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory):
    with fake_kubelet(tmp_path_factory.mktemp("k") / "kubelet.sock") as started:
        yield started


@pytest.fixture(scope="module")
def served(tmp_path_factory, kubelet):
    with (
        machine("h100x8-slurm4+busy:4") as session,
        serving(
            session, tmp_path_factory.mktemp("state"), "--kubelet-socket", str(kubelet.socket)
        ) as service,
    ):
        service.wait_for_data()
        yield service


def rows(service, name: str, query: str = "") -> list[dict[str, str]]:
    return [
        dict(re.findall(r'(\w+)="([^"]*)"', line))
        for line in service.get(f"/metrics?{query}").text.splitlines()
        if line.startswith(f"{name}{{")
    ]


def uuids(service) -> list[str]:
    return [device["uuid"] for device in service.live()["devices"]]


def warnings(service) -> list[str]:
    """What the service says of pods; a busy disk may have it say something of its history, too."""
    told = service.get("/healthz").json()["warnings"]
    return [words for words in told if "cannot be named" in words]


def test_pods_and_jobs_are_in_both_dialects_and_in_the_tick(served, kubelet):
    here = uuids(served)
    kubelet.tell(pods=[pod("ml", "llama-0", "train", here[4])], allocatable=here[:7])
    found = served.wait(lambda: rows(served, "gpudiag_gpu_pod_info"), SECONDS)
    assert found == [{"gpu": "4", "uuid": here[4], "namespace": "ml", "pod": "llama-0", "container": "train"}]
    (job,) = rows(served, "gpudiag_gpu_job_info")
    assert (job["gpu"], job["slurm_job_id"], job["user"]) == ("4", "884213", "ann")
    offered = re.findall(r"^gpudiag_gpu_allocatable\{.*\} (\d)$", served.get("/metrics").text, re.MULTILINE)
    assert offered == ["1"] * 7 + ["0"]
    power = rows(served, "DCGM_FI_DEV_POWER_USAGE", "dialect=dcgm")
    assert [row.get("pod") for row in power] == [None] * 4 + ["llama-0"] + [None] * 3
    assert power[4]["hpc_job"] == "884213"
    row = served.live()["devices"][4]
    assert row["pods"] == [
        {"namespace": "ml", "pod": "llama-0", "container": "train", "gpu_instance_id": None, "replica": None}
    ]
    assert row["slurm_jobs"] == [{"slurm_job_id": 884213, "user": "ann"}]
    assert served.get("/api/v1/processes").json()["processes"][0]["slurm_job_id"] == 884213
    assert warnings(served) == []


def test_a_kubelet_that_hangs_keeps_nothing_waiting_and_is_told_of_once(served, kubelet):
    kubelet.tell(mode="hang")
    words = served.wait(
        lambda: next((one for one in warnings(served) if "no answer within 5 s" in one), None), SECONDS
    )
    assert served.get("/readyz").status_code == 200
    assert rows(served, "gpudiag_gpu_pod_info")  # the pods run on
    kubelet.tell(mode="ok", pods=[pod("web", "chat-1", "serve", f"{uuids(served)[0]}::2")])
    served.wait(lambda: rows(served, "gpudiag_gpu_pod_info")[0]["pod"] == "chat-1", SECONDS)
    assert warnings(served) == []
    log: Path = served.log
    assert log.read_text().count(words) == 1


def test_one_process_asks_the_kubelet_whatever_happened_to_it(served):
    names = [Path(f"/proc/{pid}/cmdline").read_text() for pid in served.children()]
    assert sum("gpudiag.sampler.kubelet" in name for name in names) == 1
