"""The base machines h100-vm and h200-vm against what was recorded on the real ones: readings, facts,
listings, verdicts.

The readings travel through the simulated NVML library, the host tree and gpudiag's own probes.
"""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.registry import BOTH_GPUS, ONE_H100, ONE_H200
from gpudiag.checks.runner import run_checks
from gpudiag.model.codec import encode
from gpudiag.model.context import Context
from gpudiag.model.documents import loads
from gpudiag.model.finding import Outcome
from gpudiag.model.report import Report
from gpudiag.render.report_text import render_report_text
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session
from tests.recorded_machines import BUSY, CORPUS, MACHINES, read_recorded, recorded_document
from tests.scenarios.asked import ask_machine
from tests.scenarios.situations import look_at_machine
from tests.warm_start import run_python
from tools.compare_capture import compare

ROOT = Path(__file__).parents[2]
# The real driver answers that the GPU is not made for a fabric, the simulated library that the call is not
# supported.
DETAIL_ONLY = {"fabric"}
# Of the machine: names that were replaced, and the container that gpudiag 0.1.0 took it for.
REPLACED = {"hostname", "container", "interfaces"}


def asked(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the probes see on the base machine, and what was recorded."""
    return ask_machine(f"{name}-vm")[1], recorded_document(f"{name}/machine.json")


@pytest.mark.parametrize("name", MACHINES)
def test_every_reading_of_the_gpu_is_what_was_recorded(name: str):
    ours, recorded = asked(name)
    (device,), (real,) = ours["devices"], recorded["devices"]
    assert len(real) > 100
    # Judged since, and not read.
    assert (device.pop("free"), device["missing"].pop("free")) == (
        None,
        "not_asked",
    )
    details, real_details = device.pop("missing_detail"), real.pop("missing_detail")
    assert device == real
    assert {key: text for key, text in real_details.items() if details.get(key) != text}.keys() <= DETAIL_ONLY


@pytest.mark.parametrize("name", MACHINES)
def test_the_sources_torch_and_the_machine_are_what_was_recorded(name: str):
    ours, recorded = asked(name)
    # The recording is older than these; a simulated torch calls the NCCL that it was built with.
    assert ours["torch"].pop("nccl_built_version") == recorded["torch"]["nccl_version"]
    assert ours["torch"].pop("missing") == {"nccl_library": "not_supported"}
    assert ours["torch"].pop("nccl_library") is None
    del ours["torch"]["missing_detail"]
    same = tuple(
        """
        driver_version cuda_driver_version nvml_version torch disagreements failed_calls
        confidential_computing views
        """.split()
    )
    assert [key for key in same if ours[key] != recorded[key]] == []
    sources = [
        [(source["name"], source["state"], source["device_count"]) for source in one["sources"]]
        for one in (ours, recorded)
    ]
    assert sources[0] == sources[1]
    machine, real = ours["machine"], recorded["machine"]
    # The recording is older than these too: nobody had put the machine into a job, and no node was of memory
    # alone.
    assert [one.pop("virtual_function") for one in machine["pci_devices"]] == [False]
    assert [machine["missing"].pop(name) for name in ("job_cgroup", "memory_only_nodes_used_bytes")] == [
        "source_absent",
        "not_supported",
    ]
    assert {"container"} <= {key for key in real if machine[key] != real[key]} <= REPLACED
    shown = [
        [{key: value for key, value in one.items() if key != "addresses"} for one in machine["interfaces"]]
        for machine in (machine, real)
    ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("name", MACHINES)
def test_it_is_a_virtual_machine_and_no_container(name: str):
    look = look_at_machine(f"{name}-vm")
    assert look.machine.container is None
    assert look.machine.state.processor_layout.virtual_machine is True
    assert recorded_document(f"{name}/machine.json")["machine"]["container"]["runtime"] == "docker"


# Of the host's state: what moves, what no file of a tree can say, and variables that no simulated program is
# given.
NOT_SAID = {"user", "filesystems", "shared_memory_available_bytes", "settings", "missing", "missing_detail"}


@pytest.mark.parametrize("name", MACHINES)
def test_the_state_of_the_host_is_what_preflight_recorded(name: str):
    state = encode(look_at_machine(f"{name}-vm").machine.state)
    real = recorded_document(f"{name}/preflight-standard.json")["snapshot"]["machine"]["state"]
    for document in (state, real):
        document["cgroup"].pop("memory_used_bytes")
        for part in document.values():
            if isinstance(part, dict):
                part.pop("missing_detail", None)
    assert real["clock"].pop("synchronized") is False  # a clock of a tree cannot be asked
    state["clock"].pop("synchronized"), state["clock"].pop("missing")
    different = {key for key in real if key not in NOT_SAID and state[key] != real[key]}
    # The tree has no RDMA ports where the machine has none, and no /sys/class/infiniband: both mean none.
    assert different <= {"infiniband_ports", "fabric_manager", "iommu", "redirecting_bridges"}
    assert not state["infiniband_ports"]
    assert not real["infiniband_ports"]
    assert state["fabric_manager"]["running"] is real["fabric_manager"]["running"] is False
    variables = real["settings"]["environment"]
    given = state["settings"]["environment"]
    assert {name for name in variables if given.get(name) != variables[name]} <= {
        "CUDA_HOME",
        "LD_LIBRARY_PATH",
    }


@pytest.mark.parametrize("name", MACHINES)
def test_nvidia_smi_of_the_real_machine_has_the_same_structure(name: str):
    """Its readings of that moment differ: the GPU was awake by then."""
    root = ElementTree.fromstring(read_recorded(f"{name}/nvidia-smi.xml"))
    (element,) = root.findall("gpu")
    compared = compare(element, load_scenario(f"{name}-vm").gpus[0])
    assert [one.field.reading for one in compared if one.is_structural] == []
    differing = {one.field.reading for one in compared if one.outcome == "differs"}
    live = {one.field.reading for one in compared if one.field.kind == "live"}
    assert differing <= live
    counts = Counter(one.outcome for one in compared)
    assert counts["same"] >= 60
    assert root.findtext("driver_version") == load_scenario(f"{name}-vm").nvml.driver_version


def test_the_readings_of_the_report_of_make_gpu_are_those():
    report = read_recorded("h100/confirmation-report.md")
    assert "5 differs, 4 not_in_capture, 62 same" in report
    judged = set(re.findall(r"^\| `([a-z0-9_.]+)` \| (?:PASS|SKIP|WARN|FAIL|ERROR)", report, re.MULTILINE))
    known = {check.name for check in BUILTIN}
    assert len(judged) > 80
    assert judged <= known, "a check that a real GPU confirmed has another name: say so in its `confirmed`"


# --- with eight ranks on the GPU

PROCESS = re.compile(r"^\|\s+0\s.*\s(\d+)\s+C\s+(\S+)\s+(\d+)MiB \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def busy():
    with open_session(load_scenario(str(BUSY))) as session:
        yield dict(session.environment)


def run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_list(environment: dict[str, str], *flags: str) -> str:
    done = run_python(("-m", "gpudiag", "list", *flags), environment, 120)
    assert done.status == 0, done.err
    return done.out


def test_the_processes_are_those_that_nvidia_smi_listed(busy):
    real = PROCESS.findall(read_recorded("h100/nvidia-smi-busy.txt"))
    assert len(real) == 8
    shown = re.findall(r"^\|\s+0\s+(\d+)\s+C\s+(\d+)MiB\s+(\S+)\s+\|$", run(busy, "nvidia-smi"), re.MULTILINE)
    assert [(pid, name, used) for pid, used, name in shown] == real
    document = json.loads(run_list(busy, "--json"))
    listed = document["devices"][0]["processes"]
    assert [
        (str(one["pid"]), one["command"].split()[0], str(one["memory_used_bytes"] // 2**20)) for one in listed
    ] == real
    assert all(one["user"] == "ann" and one["visible"] for one in listed), (
        "as in no container, by the pid of /proc"
    )


def test_a_gpu_that_eight_ranks_use_is_not_free(busy):
    text = run_list(busy)
    assert "ann train.py" in text
    assert "+7 ok" in " ".join(text.split())
    assert "Free: none." in text


# --- whole documents

# What is judged otherwise today, and why.
JUDGED_OTHERWISE = {
    ("h200", "host.cgroup"): (Outcome.PASS, "128 GiB for a GPU of 141 GB is a rule of thumb, and a note now"),
}
DOCUMENTS = [(name, file) for name in MACHINES for file in ("preflight-standard.json", "bandwidth.json")]


@pytest.mark.parametrize(("name", "file"), DOCUMENTS)
def test_a_document_of_that_day_is_judged_alike_today(name: str, file: str):
    report = loads(read_recorded(f"{name}/{file}"))
    assert isinstance(report, Report)
    again = {
        result.check: result for result in run_checks(Context(report.snapshot, report.measures), BUILTIN)
    }
    otherwise = {}
    for result in report.results:
        today = again[result.check]
        if Outcome.SKIP in (result.outcome, today.outcome) and "earlier" in f"{result.reason}{today.reason}":
            continue  # it compares with a snapshot that the document does not hold
        if today.outcome is not result.outcome:
            otherwise[name, result.check] = today.outcome
    allowed = {key: outcome for key, (outcome, _) in JUDGED_OTHERWISE.items()}
    checks = {result.check for result in report.results}
    assert otherwise == {
        (at, check): outcome for (at, check), outcome in allowed.items() if at == name and check in checks
    }
    assert len(again) > len(report.results) // 2
    assert report.verdict.value.upper() in render_report_text(report)


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_document_is_a_machine_to_simulate(name: str, tmp_path: Path):
    path = tmp_path / "machine.json"
    for file in ("machine.json", "preflight-standard.json", "bandwidth.json"):
        path.write_text(read_recorded(f"{name}/{file}"))
        scenario = load_scenario(str(path))
        assert [gpu.readings["name"] for gpu in scenario.gpus] == [
            recorded_document(f"{name}/machine.json")["devices"][0]["name"]
        ]


# --- every file is there for something


def test_every_recorded_file_is_read_by_what_the_readme_says():
    rows = re.findall(
        r"^\| ([\w.-]+/\S+) \| .* \| (\S+) \|$", (CORPUS / "README.md").read_text(), re.MULTILINE
    )
    files = {f"{path.parent.name}/{path.name}" for path in CORPUS.glob("*/*")}
    assert {file for file, _ in rows} == files
    missing = [
        file
        for file, reader in rows
        if Path(file).name.removesuffix(".gz") not in (ROOT / reader).read_text()
    ]
    assert missing == []


def test_what_a_check_calls_confirmed_there_was_judged_there():
    outcomes = {
        name: {
            result["check"]: result["outcome"]
            for result in recorded_document(f"{name}/preflight-standard.json")["results"]
        }
        for name in MACHINES
    }
    confirmed = [check for check in BUILTIN if BOTH_GPUS in check.confirmed]
    assert len(confirmed) > 30
    places = [(check, name) for check in confirmed for name in MACHINES]
    places += [(check, "h100") for check in BUILTIN if ONE_H100 in check.confirmed]
    places += [(check, "h200") for check in BUILTIN if ONE_H200 in check.confirmed]
    assert [(check.name, name) for check, name in places if outcomes[name].get(check.name) != "pass"] == []
    for check, name in places:
        (device,) = recorded_document(f"{name}/machine.json")["devices"]
        # A fabric and peers are not there on any of both; what is not asked for in a listing is in
        # preflight's document.
        missing = {
            reading
            for reading in check.readings
            if device.get("missing", {}).get(reading) == "not_supported" and not reading.endswith("_slot_max")
        }
        assert missing <= {"fabric"}, (check.name, name)
