"""What a step's output says: versions of NCCL, readings beside nvidia-smi, checks with their readings, tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.model.finding import Outcome
from tools.confirm_on_gpu import reading
from tools.confirm_on_gpu.playback import compare_listings
from tools.confirm_on_gpu.report import Speed
from tools.confirm_on_gpu.run import REPOSITORY, _joined
from tools.confirm_on_gpu.step import Output


@pytest.fixture
def output_of(tmp_path):
    def make(document: object = "", *, status: int = 0, stderr: str = "") -> Output:
        stdout, errors = tmp_path / "step.out", tmp_path / "step.err"
        stdout.write_text(document if isinstance(document, str) else json.dumps(document))
        errors.write_text(stderr)
        return Output(status, 1.0, stdout, errors)

    return make


def with_nccl(version: str | None) -> dict:
    return {"torch": {"nccl_version": version}}


COLLECTIVE = {
    "outcome": "pass", "backend": "nccl", "world_size": 2, "ranks_share_gpu": True, "findings": [],
    "results": [{"op": "all_reduce", "verified": True}],
}  # fmt: skip
REFUSAL = "two NCCL ranks on one GPU need NCCL 2.30 or later, and torch here has NCCL 2.28.9"


@pytest.mark.parametrize(
    ("version", "works", "outcome"),
    [
        ("2.30.3", True, "pass"),
        ("2.28.9", False, "pass"),
        ("2.28.9", True, "fail"),
        ("2.30.3", False, "fail"),
    ],
)
def test_bare_nccl_is_held_against_the_version_that_gpudiag_takes_for_the_first(
    output_of, version, works, outcome
):
    answer = {"works": True, "sum": 3.0} if works else {"works": False, "words": "Duplicate GPU detected"}
    told = reading.read_pair(output_of(answer), with_nccl(version))
    assert told.outcome == outcome
    assert version in told.sentence
    assert works or "Duplicate GPU" in told.sentence


def test_a_wrong_sum_on_a_shared_gpu_is_a_fault(output_of):
    assert (
        reading.read_pair(output_of({"works": True, "sum": 2.0}), with_nccl("2.30.3")).outcome is Outcome.FAIL
    )


def test_two_ranks_are_refused_before_2_30_and_legal_from_it(output_of):
    refused = reading.read_shared(output_of(status=2, stderr=REFUSAL), with_nccl("2.28.9"))
    assert (refused.outcome, "refused" in refused.sentence) == (Outcome.PASS, True)
    legal = reading.read_shared(output_of(COLLECTIVE), with_nccl("2.30.3"))
    assert (legal.outcome, "legal with NCCL 2.30.3" in legal.sentence) == (Outcome.PASS, True)


def test_two_ranks_that_run_where_they_cannot_or_do_not_share_are_faults(output_of):
    assert reading.read_shared(output_of(COLLECTIVE), with_nccl("2.28.9")).outcome is Outcome.FAIL
    apart = COLLECTIVE | {"ranks_share_gpu": False}
    assert reading.read_shared(output_of(apart), with_nccl("2.30.3")).outcome is Outcome.FAIL


def test_a_run_over_gloo_confirms_no_nccl(output_of):
    assert reading.read_collective(output_of(COLLECTIVE | {"backend": "gloo"}), {}).outcome is Outcome.FAIL


def a_row(**changes) -> dict:
    row = {
        "nvml_index": 0,
        "reading": "serial",
        "kind": "identity",
        "outcome": "same",
        "ours": "1",
        "theirs": "1",
    }
    return row | changes


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        (a_row(), "pass"),
        (a_row(outcome="not_in_capture"), "pass"),
        (a_row(kind="live", outcome="differs"), "pass"),
        (a_row(kind="fixed", outcome="differs"), "fail"),
        (a_row(kind="live", outcome="only_in_capture"), "fail"),
        (a_row(outcome="only_here"), "fail"),
    ],
)
def test_readings_are_right_where_nvidia_smi_says_the_same_or_they_move(output_of, row, outcome):
    told = reading.read_comparison(output_of([row, a_row()]), {})
    assert told.outcome == outcome
    assert len(told.readings) == 2
    assert outcome == "pass" or "serial" in told.sentence


def test_a_check_is_told_with_the_readings_that_a_gpu_gave_and_those_that_none_gave():
    result = {"check": "ecc.uncorrected", "outcome": "pass", "reason": None, "findings": []}
    row = {
        "ecc_uncorrected_volatile": 0, "ecc_uncorrected_aggregate": None, "ecc_locations": None,
        "missing": {"ecc_uncorrected_aggregate": "not_supported", "ecc_locations": "not_supported"},
    }  # fmt: skip
    other = row | {"ecc_locations": []}
    (check,) = reading.checks_of({"results": [result], "snapshot": {"devices": [row, other]}})
    assert check.read == ("ecc_uncorrected_volatile", "ecc_locations")
    assert check.missing == {"ecc_uncorrected_aggregate": "not_supported"}
    assert "nvidia-smi" in check.confirmed_before


def test_one_worker_is_no_fault_of_one_gpu_and_a_wrong_gradient_is(output_of):
    row = {
        "strategy": "ddp", "dtype": "bfloat16", "world_size": 1, "backend": "nccl", "reason": None,
        "verifications": [{"passed": True}], "findings": [{"code": "train.single_worker", "outcome": "warn"}],
    }  # fmt: skip
    well = {"outcome": "warn", "strategies": [row]}
    assert reading.read_training(output_of(well), {}).outcome is Outcome.PASS
    wrong = {"code": "train.gradients_differ", "outcome": "fail", "message": "they differ"}
    ill = {"outcome": "fail", "strategies": [row | {"findings": [*row["findings"], wrong]}]}
    told = reading.read_training(output_of(ill), {})
    assert (told.outcome, "they differ" in told.sentence) == (Outcome.FAIL, True)


def test_speeds_of_both_are_joined_with_their_ratio_and_the_loops_own_spread():
    ours, again = (Speed("memory_copy", "B/s", (value,), ()) for value in (98.0, 102.0))
    (joined,) = _joined([ours, Speed("memory_copy", "B/s", (), (190.0, 200.0, 210.0)), again])
    assert (joined.gpudiag, joined.ratio, joined.loop_spread) == ((98.0, 102.0), 0.5, 0.1)


def test_a_record_that_comes_back_differently_is_told():
    gpu = {"nvml_index": 0, "name": "H100", "processes": [], "power_draw_watts": 70.0}
    same = compare_listings({"devices": [gpu]}, {"simulated": "m", "devices": [gpu | {"processes": None}]})
    assert same == {"simulated": "m", "same": 3, "differing": []}
    other = compare_listings({"devices": [gpu]}, {"simulated": "m", "devices": [gpu | {"name": "A100"}]})
    assert other["differing"] == ["GPU 0 name"]
    assert compare_listings({"devices": [gpu]}, {"simulated": "m", "devices": []})["differing"]


TESTS = """
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

@pytest.fixture(scope="module")
def number():
    return 4

@pytest.fixture(scope="module")
def gpu():
    pytest.skip("no GPU here")

def test_right(number):
    assert number / 3 == pytest.approx(1.3333333)

def test_wrong(number):
    assert number == 5

def test_skipped(gpu):
    raise AssertionError

def test_broken():
    pytest.importorskip("torch")
"""


def test_tests_run_without_pytest_and_what_it_lacks_is_an_error_not_a_pass(tmp_path, output_of):
    folder, result = tmp_path / "tests", tmp_path / "gpu-tests.xml"
    folder.mkdir()
    Path(folder, "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "tools.confirm_on_gpu.without_pytest", str(folder), str(result)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    told = reading.read_tests(output_of(), {})
    assert told.outcome is Outcome.FAIL
    assert "1 of 4 passed; test_skipped skipped: no GPU here" in told.sentence
    assert "test_wrong: line 18: assert number == 5" in told.sentence
    assert "test_broken: AttributeError" in told.sentence


def test_the_gpu_tests_need_no_more_of_pytest_than_there_is_without_it():
    code = (
        "import sys, pathlib; from tools.confirm_on_gpu.without_pytest import make_pytest\n"
        "sys.modules['pytest'] = make_pytest()\n"
        "for path in pathlib.Path('tests/gpu').glob('test_*.py'): exec(compile(path.read_text(), path, 'exec'), {})\n"
        "used = {w for p in pathlib.Path('tests/gpu').glob('*.py') for w in __import__('re').findall(r'pytest\\.(\\w+)', p.read_text())}\n"
        "assert used <= vars(sys.modules['pytest']).keys(), used\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
