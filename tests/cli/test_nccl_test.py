"""The command line of `gpudiag nccl-test`, without starting ranks: flags, plans, refusals."""

from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.cli.main import main
from gpudiag.cli.nccl_test import nccl_test
from gpudiag.cli.plan_options import plan_from
from gpudiag.errors import ExitStatus
from gpudiag.installed import install_command
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.option import ALL
from gpudiag.model.plan import BACKENDS, DTYPES, REDUCTIONS, VERIFY_MODES, NcclTestPlan


def plan_of(*argv: str) -> NcclTestPlan:
    with nccl_test.make_context("nccl-test", list(argv)) as context:
        return plan_from(NcclTestPlan, context.params)


def test_no_flag_at_all_is_the_default_plan() -> None:
    assert plan_of() == NcclTestPlan()


def test_sizes_are_read_as_people_write_them() -> None:
    plan = plan_of("--min-bytes", "1K", "--max-bytes", "8G")
    assert (plan.min_bytes, plan.max_bytes) == (1024, 8 * 1024**3)
    assert plan_of("--max-bytes", "auto").max_bytes is None


def test_all_operations_are_named_and_all_dtypes_are_left_to_the_backend() -> None:
    plan = plan_of("--op", "all", "--dtype", "all")
    assert plan.op == tuple(OPERATIONS)
    assert plan.dtype == (ALL,)


plans = st.builds(
    NcclTestPlan,
    backend=st.sampled_from(BACKENDS),
    nproc=st.none() | st.integers(1, 256),
    op=st.lists(st.sampled_from(list(OPERATIONS)), min_size=1, unique=True).map(tuple),
    dtype=st.just((ALL,)) | st.lists(st.sampled_from(DTYPES), min_size=1, unique=True).map(tuple),
    reduce=st.sampled_from([reduce for reduce in REDUCTIONS if reduce != "avg"]),
    unaligned=st.booleans(),
    min_bytes=st.integers(0, 1024),
    max_bytes=st.none() | st.integers(1024, 2**40),
    step_factor=st.integers(2, 1024),
    iterations=st.none() | st.integers(1, 1000),
    warmup=st.none() | st.integers(0, 1000),
    verify=st.sampled_from(VERIFY_MODES),
    timeout_seconds=st.none() | st.floats(1, 1000),
    rendezvous_timeout_seconds=st.floats(1, 1000),
) | st.builds(NcclTestPlan, inject=st.lists(st.sampled_from(["kill:1@3", "slow:0:5"])).map(tuple))


@given(plans)
def test_a_plan_comes_back_from_its_own_flags(plan: NcclTestPlan) -> None:
    assert plan_of(*plan.to_argv()) == plan


@pytest.mark.parametrize(
    "argv",
    [
        ["--nproc", "0"],
        ["--nproc", "two"],
        ["--op", "nonsense"],
        ["--op", ""],
        ["--dtype", "float31"],
        ["--backend", "mpi"],
        ["--min-bytes", "1G", "--max-bytes", "1M"],
        ["--min-bytes", "big"],
        ["--step-factor", "1"],
        ["--iterations", "0"],
        ["--inject", "kill:1@3", "--verify", "off"],
        ["--backend", "gloo", "--inject", "melt:1@3"],
        ["--backend", "gloo", "--nproc", "2", "--inject", "kill:2@3"],
        ["--backend", "gloo", "--rank", "0"],
        ["--output", "/nowhere/report.json"],
        ["--events", "/nowhere/events.jsonl"],
        ["--no-such-flag"],
    ],
)
def test_a_mistake_is_one_sentence_and_exit_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    assert main(["nccl-test", *argv]) == ExitStatus.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gpudiag: ")
    assert len(captured.err.splitlines()) <= 2


def test_a_near_miss_is_answered_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    main(["nccl-test", "--op", "all_redcue"])
    assert "all_reduce" in capsys.readouterr().err


def test_without_torch_one_sentence_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudiag.runs.interpreters.absent_modules", lambda modules, python: modules)
    assert main(["nccl-test", "--backend", "gloo"]) == ExitStatus.USAGE
    error = capsys.readouterr().err
    assert "torch" in error
    assert install_command("torch") in error
    assert "CPU" in error


def test_files_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    with pytest.raises(click.exceptions.NoSuchOption):
        plan_of("--output", str(target), "--no-such-flag")
    assert not target.exists()
