"""`gpudiag topo` on simulated machines: whole, in 80 columns, with the right status, and nothing left
running.
"""

from pathlib import Path

import jsonschema
import pytest

from gpudiag.errors import ExitStatus
from gpudiag.model.active import peer_metric
from gpudiag.model.documents import json_schema, loads
from gpudiag.model.history import Sample
from gpudiag.model.topology import Topology
from gpudiag.store.history import RunFacts
from tests.cli.simulated import Done, run_gpudiag, run_on, simulated_machine
from tests.stored_runs import record_run

MACHINES = {
    "h100x8": ("NV18", {"PIX", "NODE", "SYS"}),
    "gb200x4": ("NV18", {"NODE", "SYS"}),
    "a100-pciex4": ("NV12", {"NODE", "SYS"}),
    "rtx4090x2": ("NODE", set()),
}


def topo(scenario: str, folder: Path, *argv: str, **variables: str) -> Done:
    return run_gpudiag(scenario, "topo", *argv, GPUDIAG_STATE_DIR=str(folder), COLUMNS="80", **variables)


@pytest.mark.parametrize("name", MACHINES)
def test_a_healthy_machine_passes_and_its_document_fits_the_schema(name: str, tmp_path: Path) -> None:
    done = topo(name, tmp_path, "--json")
    assert done.status == ExitStatus.PASS, done.err
    jsonschema.validate(done.document, json_schema(Topology.SCHEMA))
    topology = loads(done.out)
    assert isinstance(topology, Topology)
    first, cards = MACHINES[name]
    assert topology.links[0].label == first
    assert {path.label for path in topology.nic_paths} == cards
    assert topology.findings == ()
    assert done.left == ()


def test_text_fits_80_columns_and_the_file_gets_the_document(tmp_path: Path) -> None:
    kept = tmp_path / "topology.json"
    done = topo("h100x8", tmp_path, "--output", str(kept))
    assert done.status == ExitStatus.PASS, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    assert "GPU0 X    NV18" in done.out
    assert isinstance(loads(kept.read_text()), Topology)


def test_one_gpu_in_a_virtual_machine(tmp_path: Path) -> None:
    done = topo("h100-vm", tmp_path)
    assert done.status == ExitStatus.PASS, done.err
    assert "1x NVIDIA H100 80GB HBM3, 1 NUMA node" in done.out


@pytest.mark.parametrize(
    ("scenario", "status", "words"),
    [
        ("h100x8+nvlink-down:3:5", ExitStatus.FAIL, "nvlink.link_down: GPU 3"),
        ("none", ExitStatus.ERROR, "no GPU is listed"),
        ("h100x8+no-library", ExitStatus.FAIL, "nvml"),
    ],
)
def test_what_is_wrong_decides_the_exit_status(
    scenario: str, status: ExitStatus, words: str, tmp_path: Path
) -> None:
    done = topo(scenario, tmp_path)
    assert done.status == status, done.out
    assert words in done.out
    assert done.left == ()


def test_the_finding_is_that_of_preflight(tmp_path: Path) -> None:
    with simulated_machine("h100x8+nvlink-down:3:5") as session:
        here = {"GPUDIAG_STATE_DIR": str(tmp_path)}
        topology = run_on(session, "topo", "--json", **here).document
        report = run_on(session, "preflight", "--level", "instant", "--json", **here).document
    own = [
        finding
        for result in report["results"]
        for finding in result["findings"]
        if finding["code"] == "nvlink.link_down"
    ]
    assert [finding for finding in topology["findings"] if finding["code"] == "nvlink.link_down"] == own != []


def test_settings_of_nccl_change_what_it_would_choose(tmp_path: Path) -> None:
    document = topo("a100-pciex4", tmp_path, "--json", NCCL_P2P_LEVEL="SYS").document
    assert document["nccl"]["p2p_setting"] == "NCCL_P2P_LEVEL=SYS"
    assert document["nccl"]["p2p"] == "SYS"


@pytest.mark.parametrize("argv", [("--tree",), ("--deadline", "never"), ("--verbose", "--json"), ("GPU0",)])
def test_wrong_input_is_one_sentence_and_status_2(argv: tuple[str, ...], tmp_path: Path) -> None:
    done = topo("none", tmp_path, *argv)
    assert done.status == ExitStatus.USAGE
    assert done.out == ""
    assert done.err.startswith("gpudiag: ")
    assert "Traceback" not in done.err


def test_what_was_measured_before_stands_beside_the_path(tmp_path: Path) -> None:
    store = tmp_path / "history.db"
    with simulated_machine("rtx4090x2") as session:
        here = {"GPUDIAG_STATE_DIR": str(tmp_path), "COLUMNS": "80"}
        snapshot = loads(run_on(session, "list", "--json", **here).out)
        source, target = (device.id.uuid for device in snapshot.devices)
        copy = Sample(peer_metric(target), 21.4e9, "B/s", source)
        assert record_run(str(store), RunFacts(snapshot, "bandwidth", "pass", (copy,), good=True), 30.0) == ""
        done = run_on(session, "topo", "--store", str(store), **here)
    assert done.status == ExitStatus.PASS, done.err
    assert "GPU0 X    21.4" in done.out


def test_a_history_that_cannot_be_read_costs_only_the_measured_bandwidths(tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_text("this is no database\n" * 100)
    done = topo("rtx4090x2", tmp_path, "--store", str(tmp_path / "broken.db"))
    assert done.status == ExitStatus.PASS, done.err
    assert "bandwidths measured before are not shown" in done.err
