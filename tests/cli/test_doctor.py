"""`gpudiag doctor` on simulated machines, and with things taken away from this one."""

import os
from pathlib import Path

import jsonschema
import pytest

from gpudiag.errors import ExitStatus
from gpudiag.model.doctor import DoctorReport, PartState
from gpudiag.model.documents import json_schema, loads
from tests.cli.simulated import Done, run_gpudiag, run_in


def parts(done: Done) -> dict[str, PartState]:
    report = loads(done.out)
    assert isinstance(report, DoctorReport)
    return {part.name: part.state for part in report.parts}


def test_a_healthy_machine_works_and_the_document_fits_its_schema(tmp_path: Path) -> None:
    done = run_gpudiag("h100x8", "doctor", "--json", GPUDIAG_STATE_DIR=str(tmp_path))
    assert done.status == ExitStatus.PASS, done.out
    jsonschema.validate(done.document, json_schema(DoctorReport.SCHEMA))
    seen = parts(done)
    assert PartState.BROKEN not in seen.values()
    assert {seen[name] for name in ("nvml", "device-files", "nvidia-smi", "kernel-log", "state-folder")} == {
        PartState.WORKS
    }
    assert done.left == ()


@pytest.mark.parametrize("fault", ["no-library", "no-driver", "no-permission"])
def test_a_driver_that_does_not_work_is_broken_and_exits_3(fault: str, tmp_path: Path) -> None:
    done = run_gpudiag(f"h100x8+{fault}", "doctor", "--json", GPUDIAG_STATE_DIR=str(tmp_path))
    assert done.status == ExitStatus.ERROR
    assert parts(done)["nvml"] is PartState.BROKEN
    lacking = {one["name"] for one in done.document["commands"] if "nvml" in one["lacks"]}
    assert {"list", "preflight"} <= lacking


def test_a_driver_that_hangs_holds_it_up_no_longer_than_the_deadline(tmp_path: Path) -> None:
    done = run_gpudiag(
        "h100x8+init-hang", "doctor", "--json", "--deadline", "1", GPUDIAG_STATE_DIR=str(tmp_path)
    )
    assert done.status == ExitStatus.ERROR
    assert parts(done)["nvml"] is PartState.BROKEN
    assert done.left == ()


def examine(*argv: str, **environment: str) -> Done:
    return run_in({**os.environ, **environment}, "doctor", *argv)


def test_with_an_empty_path_and_no_place_for_its_state_it_says_both(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = examine("--json", PATH="", CC="", GPUDIAG_STATE_DIR=str(tmp_path / "file" / "state"))
    assert done.status == ExitStatus.ERROR, done.err
    states = {part["name"]: part for part in done.document["parts"]}
    assert states["state-folder"]["state"] == "broken"
    assert "Not a directory" in states["state-folder"]["seen"]
    assert states["slurm"]["state"] == "not_here"


def test_an_interpreter_that_never_answers_costs_only_what_it_was_asked(tmp_path: Path) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 1000\n")
    hanging.chmod(0o755)
    done = examine("--json", "--deadline", "1", "--python", str(hanging), GPUDIAG_STATE_DIR=str(tmp_path))
    assert done.status == ExitStatus.ERROR, done.err
    assert done.left == ()
    states = {part["name"]: part["state"] for part in done.document["parts"]}
    assert states["torch"] == "broken"
    assert states["state-folder"] == "works"
    assert examine("--python", str(tmp_path / "none")).status == ExitStatus.USAGE
