"""What a step's output says: versions of NCCL, readings beside nvidia-smi, checks and tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.model.finding import Outcome
from tools.confirm_on_gpu import hang_jobs, reading
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


COLLECTIVE = {"outcome": "pass", "backend": "nccl", "world_size": 2, "ranks_share_gpu": True} | {
    "findings": [],
    "results": [{"op": "all_reduce", "verified": True}],
}
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


def test_the_loaded_nccl_is_what_counts(output_of, tmp_path):
    """A library that was preloaded, or a newer wheel: torch's own number is that of its build."""
    answer = {"works": True, "sum": 3.0, "version": "2.32.3"}
    told = reading.read_pair(output_of(answer), with_nccl("2.28.9"))
    assert (told.outcome, "2.32.3" in told.sentence) == (Outcome.PASS, True)
    (tmp_path / "nccl-pair.json").write_text(json.dumps(answer))
    shared = reading.read_shared(output_of(COLLECTIVE), with_nccl("2.28.9"))
    assert (shared.outcome, "legal with NCCL 2.32.3" in shared.sentence) == (Outcome.PASS, True)


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_costs_of_calls_are_told_with_the_dearest_of_a_listing(output_of):
    def call(name: str, of_list: float, seconds: float) -> dict:
        per_look = {"list": of_list, "fast tick": 1.0, "slow tick": 0.0}
        return {
            "call": name,
            "per_look": per_look,
            "median_seconds": seconds,
            "longest_seconds": seconds,
            "processor_seconds": seconds,
        }

    look = {"look": "list", "median_seconds": 0.13, "longest_seconds": 0.2, "processor_seconds": 0.1}
    told = reading.read_costs(output_of(lines(look, call("nvmlA", 1, 0.002), call("nvmlB", 8, 0.001))), {})
    assert told.outcome is Outcome.PASS
    assert "list: 130.0 ms, 100.0 ms of a processor; dearest of a listing: nvmlB, 8.0 ms" in told.sentence
    assert [(cost.call, cost.of_list, cost.of_fast_tick) for cost in told.costs] == [
        ("nvmlA", 1, 1.0),
        ("nvmlB", 8, 1.0),
    ]
    assert reading.read_costs(output_of("", stderr="NVML lists no GPU"), {}).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("listing", "instant", "outcome"), [(0.30, 0.85, "pass"), (0.36, 0.85, "warn"), (0.30, 1.77, "warn")]
)
def test_start_times_are_held_against_what_they_are_meant_to_be(output_of, listing, instant, outcome):
    took = {
        "gpudiag list --json": listing,
        "gpudiag preflight --level instant": instant,
        "nvitop -1": 0.52,
    }
    rows = [
        {"command": name, "median_seconds": seconds, "processor_seconds": 0.1, "rounds": rounds}
        for rounds in (1, 2)
        for name, seconds in took.items()
    ]
    absent = {"command": "gpustat --json", "not_run": "gpustat is not installed"}
    told = reading.read_starts(output_of(lines(absent, *rows)), {})
    assert told.outcome == outcome
    assert len(told.starts) == 4
    assert "gpustat --json not run: gpustat is not installed" in told.sentence


@pytest.mark.parametrize(
    ("share", "states", "outcome"),
    [(0.004, ["ok"], "pass"), (0.026, ["ok"], "warn"), (0.004, ["ok", "slow"], "warn")],
)
def test_a_sampler_that_costs_too_much_or_is_slow_is_a_warning(output_of, share, states, outcome):
    row = {
        "when": "alone",
        "seconds": 15.0,
        "states": states,
        "processor_shares": {"service": 0.01, "sampler": share},
        "pss_bytes": {"service": 80 << 20, "sampler": None},
    }
    told = reading.read_service(output_of(lines(row)), {"devices": []})
    assert told.outcome == outcome
    assert "service 1.00 % of a core and 80 MiB" in told.sentence


def a_job(kind: str, right: bool | None) -> dict:
    return {"kind": kind, "right": right, "answer": f"answer of {kind}", "seconds": 2.0, "steps": [20, 20]}


@pytest.mark.parametrize(
    ("rights", "outcome"), [((True, True), "pass"), ((True, False), "fail"), ((True, None), "error")]
)
def test_a_wrong_word_of_a_hang_is_a_fault_and_a_job_that_did_not_come_so_far_is_none(
    output_of, rights, outcome
):
    rows = [a_job(kind, right) for kind, right in zip(("healthy", "fifo"), rights, strict=True)]
    told = reading.read_hangs(output_of(lines(*rows)), {})
    assert told.outcome == outcome
    assert [one.kind for one in told.hangs] == ["healthy", "fifo"]


def a_verdict(outcome: str, headline: str, rank: int | None = None) -> dict:
    findings = [] if rank is None else [{"code": "x", "message": headline, "subject": {"rank": rank}}]
    return {"outcome": outcome, "headline": headline, "findings": findings, "places": []}


@pytest.mark.parametrize(
    ("kind", "verdict", "right"),
    [
        ("healthy", a_verdict("pass", "not hanging"), True),
        ("healthy", a_verdict("fail", "rank 0 hangs", 0), False),
        ("healthy", a_verdict("error", "unknown"), False),
        ("fifo", a_verdict("fail", "rank 1 reads a pipe in load_batch", 1), True),
        ("fifo", a_verdict("fail", "rank 0 waits in all_reduce", 0), False),
        ("fifo", a_verdict("pass", "not hanging"), False),
        ("loop", a_verdict("fail", "rank 1 computes in tokenize", 1), True),
        ("loop", a_verdict("fail", "rank 1 hangs somewhere", 1), False),
        ("skip", a_verdict("fail", "rank 1 left out an all_reduce", 1), True),
        ("spin", a_verdict("error", "the job hangs: a kernel does not end; which rank's is unknown"), True),
        ("spin", a_verdict("pass", "not hanging"), False),
    ],
)
def test_a_verdict_on_a_hang_is_right_where_it_names_rank_and_place(kind, verdict, right):
    assert hang_jobs.is_right(kind, verdict) is right


def test_the_job_and_what_starts_it_know_the_same_kinds():
    source = Path(hang_jobs.__file__).with_name("hang_job.py").read_text()
    assert all(f'"{kind}"' in source for kind in hang_jobs.KINDS)
    assert f"FAULTY_STEP = {hang_jobs.FAULTY_STEP}\n" in source


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
        "ecc_uncorrected_volatile": 0,
        "ecc_uncorrected_aggregate": None,
        "ecc_locations": None,
        "missing": {"ecc_uncorrected_aggregate": "not_supported", "ecc_locations": "not_supported"},
    }
    other = row | {"ecc_locations": []}
    (check,) = reading.checks_of({"results": [result], "snapshot": {"devices": [row, other]}})
    assert check.read == ("ecc_uncorrected_volatile", "ecc_locations")
    assert check.missing == {"ecc_uncorrected_aggregate": "not_supported"}
    assert "nvidia-smi" in check.confirmed_before


def test_one_worker_is_no_fault_of_one_gpu_and_a_wrong_gradient_is(output_of):
    row = (
        {"strategy": "ddp", "dtype": "bfloat16", "world_size": 1}
        | {"backend": "nccl", "reason": None, "verifications": [{"passed": True}]}
        | {"findings": [{"code": "train.single_worker", "outcome": "warn"}]}
    )
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


def test_the_stand_in_for_cuda_confirms_nothing(output_of):
    stand_in = {"torch": {"version": "2.13.0+stand.in"}}
    played = {"simulated": None, "same": 0, "differing": []}
    assert reading.read_playback(output_of(played), stand_in).outcome is Outcome.SKIP
    assert reading.read_playback(output_of(played), with_nccl("2.28.9")).outcome is Outcome.FAIL
