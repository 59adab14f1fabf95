"""The files of docs/ci: scripts are run against stand-ins, YAML is read and looked at."""

import os
import re
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
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=90)
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


# Exit statuses of gpudiag that say nothing of the node: a wrong flag, could not tell, a bug, not there, ended
# by a signal (130: Ctrl-C, 137: killed, 139: crashed), and any other.
NO_VERDICT = (2, 3, 5, 70, 126, 127, 130, 137, 139)


@pytest.mark.parametrize("status", [0, 1, *NO_VERDICT])
def test_the_prolog_lets_a_job_start_where_gpudiag_says_so_and_nowhere_else(node, status):
    done = node.run("prolog.sh", status)
    assert (done.returncode == 0) == (status == 0)
    assert len(node.drained()) == (status != 0)


@pytest.mark.parametrize("status", [0, 1, *NO_VERDICT])
def test_the_epilog_drains_too_and_does_not_fail_itself(node, status):
    assert node.run("epilog.sh", status).returncode == 0
    assert len(node.drained()) == (status != 0)


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
@pytest.mark.parametrize("status", NO_VERDICT)
def test_a_site_may_let_jobs_run_where_gpudiag_gives_no_verdict(node, script, status):
    assert node.run(script, status, GPUDIAG_UNSURE="run").returncode == 0
    assert node.drained() == []


@pytest.mark.parametrize("policy", ["run", "drain", "", "open"])
def test_no_policy_lets_a_job_start_on_a_fault(node, policy):
    assert node.run("prolog.sh", 1, GPUDIAG_UNSURE=policy).returncode == 1
    assert len(node.drained()) == 1


@pytest.mark.parametrize("policy", ["", "Run", "yes"])
def test_a_policy_that_is_no_policy_is_the_closed_one(node, policy):
    assert node.run("prolog.sh", 3, GPUDIAG_UNSURE=policy).returncode == 1


def test_what_keeps_jobs_off_is_asked_for_whoever_must_act(node):
    node.run("prolog.sh", 0)
    assert node.called("gpudiag") == ["gpudiag preflight --level instant --fail-on machine --reason"]


@pytest.mark.parametrize(
    ("gres", "flags"),
    [
        ("gpu:8", "--at-least-gpus 8"),
        ("gpu:h100:8(S:0-1)", "--at-least-gpus 8"),
        ("gpu:a100:4(S:0,2),gpu:v100:2(S:1),nic:3", "--at-least-gpus 6"),
        ("gres/gpu:2", "--at-least-gpus 2"),
        ("gpu", "--at-least-gpus 1"),
        ("gpu:a100:3(S:0-1),gpu:1g.5gb:7(S:0),gpu:a100_3g.20gb:2", "--at-least-gpus 3"),
        ("gpu:8,shard:32", "--at-least-gpus 8"),
        ("gpu:1g.10gb:7", "--at-least-gpus 1"),
        ("shard:32,mps:400", "--at-least-gpus 1"),
        ("nic:2", "--at-least-gpus 0"),
        ("(null)", "--at-least-gpus 0"),
        ("", ""),
    ],
)
def test_the_node_must_have_the_gpus_that_its_gres_names(node, gres, flags):
    (node.folder / "node").write_text(
        f"NodeName=n01 Arch=x86_64 Gres={gres} NodeAddr=n01 State=IDLE Reason=none"
    )
    node.run("prolog.sh", 0)
    assert node.called("gpudiag")[0].endswith(f"--reason {flags}".strip())


@pytest.mark.parametrize(("gpus", "flags"), [("4", "--at-least-gpus 4"), ("any", "")])
def test_a_site_may_say_how_many_gpus_the_node_has(node, gpus, flags):
    (node.folder / "node").write_text("NodeName=n01 Gres=gpu:8 State=IDLE")
    node.run("prolog.sh", 0, GPUDIAG_GPUS=gpus)
    assert node.called("gpudiag")[0].endswith(f"--reason {flags}".strip())


def test_a_good_report_of_the_node_is_given_to_gpudiag(node):
    node.run("prolog.sh", 0, GPUDIAG_EXPECT="/etc/gpudiag/good one.json")
    assert node.called("gpudiag")[0].endswith("--expect /etc/gpudiag/good one.json")


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_a_controller_that_hangs_holds_up_nothing_for_long(node, script):
    node.program("scontrol", "exec sleep 600")
    assert node.run(script, 0).returncode == 0
    assert node.called("gpudiag")


def test_the_node_is_drained_with_the_reason(node):
    node.run("prolog.sh", 1)
    assert node.drained() == [f"scontrol update NodeName=n01 State=DRAIN Reason={REASON}"]


def test_a_fault_without_words_still_has_a_reason(node):
    node.run("prolog.sh", 1, reason="")
    assert node.drained() == ["scontrol update NodeName=n01 State=DRAIN Reason=gpudiag FAIL: see its report"]


def test_a_program_that_only_ends_with_1_is_told_with_its_last_words(node):
    node.run("prolog.sh", 1, reason="ModuleNotFoundError: No module named 'gpudiag'")
    (drained,) = node.drained()
    assert drained.endswith("Reason=gpudiag FAIL: ModuleNotFoundError: No module named 'gpudiag'")


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN", "DRAINED", "DRAINING"])
def test_a_node_that_is_drained_already_keeps_its_reason(node, state):
    (node.folder / "node").write_text(f"NodeName=n01 State={state} Reason=memory [root@2026]")
    assert node.run("prolog.sh", 1).returncode == 1
    assert node.drained() == []


def test_a_node_is_drained_also_where_somebody_only_wrote_of_draining(node):
    (node.folder / "node").write_text("NodeName=n01 State=IDLE NextState=none Comment=State=DRAIN soon")
    node.run("epilog.sh", 1)
    assert len(node.drained()) == 1


def test_a_scontrol_that_fails_keeps_the_job_away_all_the_same(node):
    node.program("scontrol", "exit 1")
    assert node.run("prolog.sh", 1).returncode != 0


def test_an_epilog_that_could_not_drain_leaves_it_to_slurm(node):
    node.program("scontrol", "exit 1")
    assert node.run("epilog.sh", 0).returncode == 0
    assert node.run("epilog.sh", 1).returncode == 1


def test_a_report_is_kept_where_there_is_a_place_for_it(node):
    node.reports.mkdir()
    node.run("prolog.sh", 0)
    assert node.called("gpudiag")[0].endswith(f"--reason --report json={node.reports}/42.prolog.json")


@pytest.mark.parametrize("status", [2, 3])
def test_a_report_that_cannot_be_written_keeps_no_job_off(node, status):
    node.reports.mkdir()
    body = f'case "$*" in *--report*) echo "gpudiag PASS 41 looked"; exit {status} ;; esac'
    done = node.run("prolog.sh", 0, gpudiag=node.program("gpudiag", body))
    assert (done.returncode, node.drained()) == (0, [])


def test_a_gpudiag_that_is_not_there_keeps_the_job_away(node):
    assert node.run("prolog.sh", 0, gpudiag=Path("/nonexistent/gpudiag")).returncode == 1
    (drained,) = node.drained()
    assert "Reason=gpudiag cannot be started (exit status 127): " in drained
    assert "/nonexistent/gpudiag" in drained


def test_a_gpudiag_that_hangs_keeps_the_job_away(node):
    program = node.program("gpudiag", "trap '' TERM; exec sleep 600")
    assert node.run("prolog.sh", 0, gpudiag=program, GPUDIAG_SECONDS="0.2").returncode == 1
    (drained,) = node.drained()
    assert "gave no answer in 0.2 s" in drained


def test_a_gpudiag_that_is_killed_keeps_the_job_away(node):
    assert node.run("prolog.sh", 0, gpudiag=node.program("gpudiag", "kill -9 $$")).returncode == 1
    assert "was killed" in node.drained()[0]


def test_what_could_not_be_told_is_the_reason(node):
    node.run("prolog.sh", 3, reason="gpudiag ERROR source.nvml: nvml was not asked")
    assert node.drained()[0].endswith("Reason=gpudiag ERROR source.nvml: nvml was not asked")


@pytest.mark.parametrize("status", [1, 3, 70])
def test_the_reason_is_one_short_line_whatever_gpudiag_says(node, status):
    node.run("prolog.sh", status, reason="x" * 1000 + "\n" + "y" * 1000)
    reason = node.drained()[0].partition("Reason=")[2]
    assert 0 < len(reason) < 200


def test_what_gives_no_verdict_is_told(node):
    done = node.run("prolog.sh", 70, reason="a bug", GPUDIAG_UNSURE="run")
    # `logger` may have taken it; where there is none, slurmd's log has it.
    told = "gpudiag ended without a verdict (exit status 70): a bug"
    assert done.stderr in ("", f"gpudiag: prolog of job 42: no verdict, exit status 70 ({told})\n")


def test_scripts_that_slurmd_starts_can_be_started():
    assert all(os.access(GATES / "slurm" / name, os.X_OK) for name in ("prolog.sh", "epilog.sh"))


def workflow_job():
    (job,) = yaml.safe_load((GATES / "github-actions.yml").read_text())["jobs"].values()
    return job


def test_the_github_workflow_gates_and_keeps_its_reports():
    names = [step["name"] for step in workflow_job()["steps"]]
    assert names.index("Judge the GPUs") < names.index("Train"), (
        "the runner of another job may be another machine"
    )
    steps = {step["name"]: step for step in workflow_job()["steps"]}
    assert steps["Judge the GPUs"]["timeout-minutes"] <= 10
    for name in ("Judge the GPUs", "Train"):
        assert "if" not in steps[name], "a failure must end the job"
        assert "continue-on-error" not in steps[name]
    for name in ("Write the summary", "Keep the reports"):
        assert steps[name]["if"] == "always()"
    assert "GITHUB_STEP_SUMMARY" in steps["Write the summary"]["run"]


def test_the_steps_of_the_github_workflow_are_shell():
    for step in workflow_job()["steps"]:
        if "run" in step:
            done = subprocess.run(
                ["bash", "-n"], input=step["run"], capture_output=True, text=True, timeout=90
            )
            assert (done.returncode, done.stderr) == (0, ""), step["name"]


def test_the_summary_step_takes_the_report_that_is_there_or_none(tmp_path):
    (step,) = [step for step in workflow_job()["steps"] if step["name"] == "Write the summary"]
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    for report, expected in ((None, "before\n"), ("## gpudiag\n", "before\n## gpudiag\n")):
        if report is not None:
            (tmp_path / "gpudiag.md").write_text(report)
        # As GitHub runs it: https://docs.github.com, "jobs.<job_id>.steps[*].shell", bash.
        command = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
        environment = {"PATH": os.environ["PATH"], "GITHUB_STEP_SUMMARY": str(summary)}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=90)
        assert summary.read_text() == expected


def test_the_gitlab_job_gates_and_keeps_its_reports():
    file = yaml.safe_load((GATES / "gitlab-ci.yml").read_text())
    gate, train = file[".gpu-preflight"], file["train"]
    assert train["extends"] == ".gpu-preflight", "the runner of another job may be another machine"
    assert "before_script" not in train
    assert gate["artifacts"]["when"] == "always"
    assert gate["artifacts"]["reports"]["junit"] == "gpudiag.xml"
    assert "allow_failure" not in gate
    assert all(isinstance(line, str) for line in gate["before_script"])
    assert "junit=gpudiag.xml" in gate["before_script"][-1]


def test_the_init_container_judges_the_gpus_that_the_job_gets():
    job = yaml.safe_load((GATES / "kubernetes" / "job.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (check,), (train,) = pod["initContainers"], pod["containers"]
    assert check["resources"] == train["resources"]
    assert check["volumeMounts"] == train["volumeMounts"]
    (count,) = [one["value"] for one in check["env"] if one["name"] == "GPUS"]
    assert count == check["resources"]["limits"]["nvidia.com/gpu"]
    assert count in train["command"]
    assert {mount["name"] for mount in check["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert check["command"][:2] == ["/bin/sh", "-c"]
    assert "/dev/termination-log" in check["command"][2]


def test_the_init_containers_command_fails_as_gpudiag_does(tmp_path):
    job = yaml.safe_load((GATES / "kubernetes" / "job.yaml").read_text())
    command = job["spec"]["template"]["spec"]["initContainers"][0]["command"]
    message = tmp_path / "termination-log"
    script = command[2].replace("/dev/termination-log", str(message))
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for status in (0, 1, *NO_VERDICT):
        Node(tmp_path).program("gpudiag", f'echo "{REASON}"; exit {status}')
        done = subprocess.run([*command[:2], script], env=path, timeout=90)
        assert (done.returncode, message.read_text()) == (status, f"{REASON}\n")
        done = subprocess.run([*command[:2], script], env={**path, "GPUDIAG_UNSURE": "run"}, timeout=90)
        assert (done.returncode == 0) == (status != 1)


def preflight_flags():
    """Every flag that a gate gives to `gpudiag preflight`."""
    words = " ".join(
        path.read_text().replace("\\\n", " ")
        for path in GATES.rglob("*")
        if path.suffix in (".sh", ".yml", ".yaml")
    )
    calls = words.split(" preflight ")[1:]
    return {flag for call in calls for flag in re.findall(r"(?<![\w-])--[a-z-]+", call.split("\n")[0])}


def test_the_flags_of_the_gates_exist():
    flags = preflight_flags()
    assert {"--level", "--reason", "--fail-on", "--report", "--format", "--at-least-gpus"} <= flags
    command = gpudiag.get_command(click.Context(gpudiag), "preflight")
    known = {option for parameter in command.params for option in parameter.opts}
    assert flags - known == set()
