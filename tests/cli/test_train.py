"""The command line of `gpudiag train`, without starting ranks: flags, plans, refusals."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.cli.main import main
from gpudiag.cli.plan_options import plan_from
from gpudiag.cli.train import parse_pythons, train
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.installed import install_command
from gpudiag.model.documents import loads
from gpudiag.model.run import EventKind
from gpudiag.model.training import OPTIMIZERS, STRATEGIES, TRAINING_DTYPES, WORKLOADS, TrainingPlan
from tests.cli.simulated import run_gpudiag


def plan_of(*argv: str) -> TrainingPlan:
    with train.make_context("train", list(argv)) as context:
        return plan_from(TrainingPlan, context.params)


def test_no_flag_at_all_is_the_default_plan() -> None:
    assert plan_of() == TrainingPlan()


def test_all_strategies_are_named() -> None:
    assert plan_of("--strategy", "all").strategy == STRATEGIES


plans = st.builds(
    TrainingPlan,
    strategy=st.lists(st.sampled_from(STRATEGIES), min_size=1, unique=True).map(tuple),
    workload=st.sampled_from(WORKLOADS),
    nproc=st.none() | st.integers(1, 256),
    steps=st.integers(1, 10_000),
    batch_size=st.integers(1, 4096),
    dtype=st.sampled_from(TRAINING_DTYPES),
    optimizer=st.sampled_from(OPTIMIZERS),
    seed=st.integers(0, 2**31 - 1),
    inject=st.lists(st.sampled_from(["sumgrad", "kill:1@3"])).map(tuple),
    timeout_seconds=st.none() | st.floats(1, 1000),
)


@given(plans)
def test_a_plan_comes_back_from_its_own_flags(plan: TrainingPlan) -> None:
    assert plan_of(*plan.to_argv()) == plan


@pytest.mark.parametrize(
    "argv",
    [
        ("--strategy", "dpp"),
        ("--workload", "bert"),
        ("--steps", "0"),
        ("--nproc", "0"),
        ("--dtype", "float64"),
        ("--optimizer", "lamb"),
        ("--format", "yaml"),
        ("--parameters", "7B"),
        ("stray",),
        ("--backend", "gloo", "--inject", "nosync:99"),
        ("--backend", "gloo", "--inject", "nan:1@1", "--workload", "transformer"),
        ("--backend", "gloo", "--strategy", "zero2", "--inject", "sumgrad"),
        ("--backend", "gloo", "--python", "jax=/usr/bin/python3"),
        ("--script", "/nowhere/at/all.py"),
        ("--events", "/nowhere/events.jsonl"),
        ("--events", "/"),
        ("--advise", "--events", "/dev/null"),
        ("--advise", "--strategy", "ddp"),
        ("--hang-after", "5"),
        ("--script", __file__, "--steps", "4"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *argv]) == ExitStatus.USAGE
    error = capsys.readouterr().err
    assert error.startswith("gpudiag: ")
    assert "Traceback" not in error


def test_interpreters_are_given_for_all_or_for_one_framework() -> None:
    assert parse_pythons(("/opt/a=b/python", "tensorflow=/opt/tf/python")) == {
        "": "/opt/a=b/python",
        "tensorflow": "/opt/tf/python",
    }
    with pytest.raises(UsageError):
        parse_pythons(("caffe=/opt/python",))


def test_advice_needs_no_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert main(["train", "--advise", "--parameters", "7B", "--json"]) == ExitStatus.PASS
    assert '"advice"' in capsys.readouterr().out


def argv_without_deepspeed(folder: Path) -> list[str]:
    """A run of one strategy whose framework is absent, so that no rank is started."""
    interpreter = folder / "python"
    interpreter.write_text("#!/bin/sh\necho '[\"deepspeed\"]'\n")
    interpreter.chmod(0o755)
    return ["train", "--strategy", "zero1", "--backend", "gloo", "--python", f"deepspeed={interpreter}"]


def test_events_hold_what_the_report_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    status = main([*argv_without_deepspeed(tmp_path), "--json", "--events", str(events)])
    report = loads(capsys.readouterr().out)
    told = [loads(line) for line in events.read_text().splitlines()]
    assert status == ExitStatus.ERROR
    assert [(event.kind, event.done, event.planned) for event in told] == [
        (EventKind.RESULT, 1, 1),
        (EventKind.OUTCOME, 1, 1),
    ]
    assert told[0].strategy == report.strategies[0]
    assert told[-1].outcome == report.outcome.value


def test_events_that_cannot_be_written_cost_a_line_and_never_the_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status = main([*argv_without_deepspeed(tmp_path), "--json", "--events", "/dev/full"])
    captured = capsys.readouterr()
    assert status == ExitStatus.ERROR
    assert loads(captured.out).strategies[0].strategy == "zero1"
    assert [
        line.startswith("gpudiag: cannot write to /dev/full") and "events" in line
        for line in captured.err.splitlines()
    ] == [True]


def test_a_strategy_that_is_not_installed_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status = main(argv_without_deepspeed(tmp_path))
    out = capsys.readouterr().out
    assert status == ExitStatus.ERROR
    words = " ".join(out.split())
    assert f"deepspeed is not installed for {tmp_path / 'python'}" in words
    assert f"DS_BUILD_OPS=0 {tmp_path / 'python'} -m pip install deepspeed" in words


def test_without_torch_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpudiag.runs.interpreters.absent_modules", lambda modules, python: modules)
    assert main(["train", "--strategy", "ddp,fsdp2"]) == ExitStatus.USAGE
    assert install_command("torch") in capsys.readouterr().err


def test_advice_is_for_the_gpus_that_the_allocation_leaves() -> None:
    whole = run_gpudiag("h100x8", "train", "--advise", "--parameters", "7B")
    assert "each of 8 GPUs" in whole.out.replace("\n  ", " ")
    one = run_gpudiag("h100x8+visible:3", "train", "--advise", "--parameters", "1B", "--nodes", "2")
    assert "each of 2 GPUs" in one.out.replace("\n  ", " ")
    none = run_gpudiag("h100x8+visible:99", "train", "--advise")
    assert (none.status, "none of the 8 GPUs" in none.err) == (2, True)


@pytest.mark.parametrize(
    ("visible", "memory"),
    [
        (None, "27.6 GiB"),  # 70 % of the first of its instances
        ("0", "27.6 GiB"),
        ("MIG-a8d43ad8-611f-55b0-a775-3e56a5c29302", "13.7 GiB"),
        ("MIG-f8784ccf-9dda-5466-87d8-b1eb8b7206da", "6.8 GiB"),
        ("MIG-a8d43ad8,MIG-f8784ccf", "13.7 GiB"),  # CUDA shows a process one instance
    ],
)
def test_advice_is_for_one_mig_instance_and_not_for_its_gpu(visible: str | None, memory: str) -> None:
    told = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = run_gpudiag("h100-mig", "train", "--advise", "--parameters", "300M", **told)
    assert f"on the one MIG instance, of {memory} usable" in " ".join(done.out.split())


def test_advice_is_not_for_an_instance_that_is_not_there() -> None:
    for visible in ("MIG-00000000", "GPU-00000000", "7", ""):
        done = run_gpudiag("h100-mig", "train", "--advise", CUDA_VISIBLE_DEVICES=visible)
        assert (done.status, "is visible to this process" in done.err) == (2, True), visible


def test_advice_counts_the_nodes_and_tasks_of_a_slurm_job() -> None:
    one_gpu = {"CUDA_VISIBLE_DEVICES": "4", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_NNODES": "2"}
    done = run_gpudiag("h100x8-slurm4", "train", "--advise", "--parameters", "1B", **one_gpu)
    assert "each of 8 GPUs" in " ".join(done.out.split())


def test_nodes_are_for_advice_and_for_jobs_alone() -> None:
    refused = run_gpudiag("h100x8", "train", "--nodes", "2")
    assert (refused.status, "--nodes is for --emit or --advise" in refused.err) == (2, True)
