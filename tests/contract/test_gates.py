"""The files of docs/ci: scripts are run against stand-ins, YAML is read and looked at."""

import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from gpudiag.cli.commands import gpudiag

GATES = Path(__file__).parents[2] / "docs" / "ci"
SCRIPTS = sorted(GATES.rglob("*.sh"))
REASON = "gpudiag FAIL gpu.lost: GPU 5 (5d:00.0) is off the bus: GPU is lost"


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_plain_shell(shell, script):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_nothing(script):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-x", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == ""


class Node:
    """A node as slurmd sees it: stand-ins for gpudiag and scontrol that write down how they were called."""

    def __init__(self, folder):
        self.folder = folder
        self.reports = folder / "reports"
        self.calls = folder / "calls"
        self.calls.write_text("")
        self.scontrol = self.program("scontrol", f'echo "scontrol $*" >> {self.calls}; cat {folder}/node')
        (folder / "node").write_text("NodeName=n01 State=IDLE Reason=none")

    def program(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def run(self, script, status, *, reason=REASON, gpudiag=None, **environment):
        body = f'echo "gpudiag $*" >> {self.calls}; echo "{reason}"; exit {status}'
        program = gpudiag or self.program("gpudiag", body)
        # As slurmd starts it: next to nothing in the environment.
        slurmd = {
            "SLURMD_NODENAME": "n01",
            "SLURM_JOB_ID": "42",
            "GPUDIAG": str(program),
            "SCONTROL": str(self.scontrol),
            "GPUDIAG_REPORTS": str(self.reports),
            **environment,
        }
        return subprocess.run(
            [GATES / "slurm" / script], env=slurmd, capture_output=True, text=True, timeout=60
        )

    def called(self, program):
        return [line for line in self.calls.read_text().splitlines() if line.startswith(f"{program} ")]

    def drained(self):
        return [line for line in self.called("scontrol") if "State=DRAIN" in line]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


# What each script exits with, and whether the node is drained, for each exit status of gpudiag.
STATUSES = [
    (0, 0, False),
    (1, 1, True),
    (2, 0, False),
    (3, 0, False),
    (70, 0, False),
    (130, 0, False),
    (137, 0, False),
]


@pytest.mark.parametrize(("status", "expected", "drains"), STATUSES)
def test_the_prolog_drains_on_a_hardware_fault_and_on_nothing_else(node, status, expected, drains):
    assert node.run("prolog.sh", status).returncode == expected
    assert len(node.drained()) == drains


@pytest.mark.parametrize(("status", "drains"), [(status, drains) for status, _, drains in STATUSES])
def test_the_epilog_drains_too_and_never_fails_itself(node, status, drains):
    assert node.run("epilog.sh", status).returncode == 0
    assert len(node.drained()) == drains


def test_only_the_hardware_is_asked_for(node):
    node.run("prolog.sh", 0)
    assert node.called("gpudiag") == ["gpudiag preflight --level instant --fail-on hardware --reason"]


def test_the_node_is_drained_with_the_reason(node):
    node.run("prolog.sh", 1)
    assert node.drained() == [f"scontrol update NodeName=n01 State=DRAIN Reason={REASON}"]


def test_a_fault_without_words_still_has_a_reason(node):
    node.run("prolog.sh", 1, reason="")
    assert node.drained() == ["scontrol update NodeName=n01 State=DRAIN Reason=gpudiag FAIL: see its report"]


def test_a_node_that_is_drained_already_keeps_its_reason(node):
    (node.folder / "node").write_text("NodeName=n01 State=IDLE+DRAIN Reason=memory [root@2026]")
    assert node.run("prolog.sh", 1).returncode == 1
    assert node.drained() == []


def test_a_scontrol_that_fails_keeps_the_job_away_all_the_same(node):
    node.program("scontrol", "exit 1")
    assert node.run("prolog.sh", 1).returncode == 1


def test_a_report_is_kept_where_there_is_a_place_for_it(node):
    node.reports.mkdir()
    node.run("prolog.sh", 0)
    assert node.called("gpudiag")[0].endswith(f"--reason --report json={node.reports}/42.prolog.json")


def test_a_gpudiag_that_is_not_there_drains_nothing(node):
    assert node.run("prolog.sh", 0, gpudiag=Path("/nonexistent/gpudiag")).returncode == 0
    assert node.called("scontrol") == []


def test_a_gpudiag_that_hangs_drains_nothing(node):
    program = node.program("gpudiag", "trap '' TERM; exec sleep 600")
    assert node.run("prolog.sh", 0, gpudiag=program, GPUDIAG_SECONDS="0.2").returncode == 0
    assert node.called("scontrol") == []


def test_what_gives_no_verdict_is_told(node):
    done = node.run("prolog.sh", 70, reason="a bug")
    # `logger` may have taken it; where there is none, slurmd's log has it.
    assert done.stderr in ("", "gpudiag: prolog of job 42: no verdict, exit status 70 (a bug)\n")


def test_scripts_that_slurmd_starts_can_be_started():
    assert all(os.access(GATES / "slurm" / name, os.X_OK) for name in ("prolog.sh", "epilog.sh"))


def test_the_github_workflow_gates_and_keeps_its_reports():
    workflow = yaml.safe_load((GATES / "github-actions.yml").read_text())
    preflight, train = workflow["jobs"]["preflight"], workflow["jobs"]["train"]
    assert train["needs"] == "preflight"
    assert preflight["timeout-minutes"] <= 15
    steps = {step["name"]: step for step in preflight["steps"]}
    assert "if" not in steps["Judge the GPUs"], "a failure must end the job"
    assert "continue-on-error" not in steps["Judge the GPUs"]
    for name in ("Write the summary", "Keep the reports"):
        assert steps[name]["if"] == "always()"
    assert "GITHUB_STEP_SUMMARY" in steps["Write the summary"]["run"]


def test_the_steps_of_the_github_workflow_are_shell():
    workflow = yaml.safe_load((GATES / "github-actions.yml").read_text())
    for step in workflow["jobs"]["preflight"]["steps"]:
        if "run" in step:
            done = subprocess.run(
                ["bash", "-n"], input=step["run"], capture_output=True, text=True, timeout=30
            )
            assert (done.returncode, done.stderr) == (0, ""), step["name"]


def test_the_summary_step_takes_the_report_that_is_there_or_none(tmp_path):
    workflow = yaml.safe_load((GATES / "github-actions.yml").read_text())
    step = next(
        step for step in workflow["jobs"]["preflight"]["steps"] if step["name"] == "Write the summary"
    )
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    for report, expected in ((None, "before\n"), ("## gpudiag\n", "before\n## gpudiag\n")):
        if report is not None:
            (tmp_path / "gpudiag.md").write_text(report)
        # As GitHub runs it: https://docs.github.com, "jobs.<job_id>.steps[*].shell", bash.
        command = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
        environment = {"PATH": os.environ["PATH"], "GITHUB_STEP_SUMMARY": str(summary)}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=30)
        assert summary.read_text() == expected


def test_the_gitlab_job_gates_and_keeps_its_reports():
    job = yaml.safe_load((GATES / "gitlab-ci.yml").read_text())["gpu-preflight"]
    assert job["artifacts"]["when"] == "always"
    assert job["artifacts"]["reports"]["junit"] == "gpudiag.xml"
    assert "allow_failure" not in job
    assert all(isinstance(line, str) for line in job["script"])
    assert "junit=gpudiag.xml" in job["script"][-1]


def test_the_init_container_judges_the_gpus_that_the_job_gets():
    job = yaml.safe_load((GATES / "kubernetes" / "job.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (check,), (train,) = pod["initContainers"], pod["containers"]
    assert check["resources"] == train["resources"]
    assert check["volumeMounts"] == train["volumeMounts"]
    assert {mount["name"] for mount in check["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert check["command"][:2] == ["/bin/sh", "-c"]
    assert "/dev/termination-log" in check["command"][2]


def test_the_init_containers_command_fails_as_gpudiag_does(tmp_path):
    job = yaml.safe_load((GATES / "kubernetes" / "job.yaml").read_text())
    command = job["spec"]["template"]["spec"]["initContainers"][0]["command"]
    message = tmp_path / "termination-log"
    script = command[2].replace("/dev/termination-log", str(message))
    for status in (0, 1, 3):
        Node(tmp_path).program("gpudiag", f'echo "{REASON}"; exit {status}')
        done = subprocess.run([*command[:2], script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=30)
        assert (done.returncode, message.read_text()) == (status, f"{REASON}\n")


def preflight_flags():
    """Every flag that a gate gives to `gpudiag preflight`."""
    words = " ".join(
        path.read_text().replace("\\\n", " ")
        for path in GATES.rglob("*")
        if path.suffix in (".sh", ".yml", ".yaml")
    )
    calls = words.split(" preflight ")[1:]
    return {
        word for call in calls for word in call.split("2>")[0].split("\n")[0].split() if word.startswith("--")
    }


def test_the_flags_of_the_gates_exist():
    flags = preflight_flags()
    assert {"--level", "--reason", "--fail-on", "--report", "--format"} <= flags
    command = gpudiag.get_command(click.Context(gpudiag), "preflight")
    known = {option for parameter in command.params for option in parameter.opts}
    assert flags - known == set()
