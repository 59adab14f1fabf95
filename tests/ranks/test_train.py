"""`gpudiag train` whole, on real gloo ranks: the maths proved, every fault found and named, nothing left
behind.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpudiag.model.documents import json_schema
from tests.ranks.nccl_test_command import LIMIT_SECONDS, Completed, run
from tests.ranks.train_command import SHARDS, STRATEGIES, TRAIN, torchrun_train, train

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(400)]

PROVED = 18  # things that are proved where nothing is injected; of DDP also that there were several buckets
_SHARDED = pytest.mark.skipif(not SHARDS, reason="this torch has no FSDP2 for the CPU")
SOON = 2  # steps within which a fault must be found


def assert_clean(completed: Completed) -> None:
    assert completed.left_behind == ()
    assert "Traceback" not in completed.error


def read_report(completed: Completed) -> Any:
    document = completed.document()
    Draft202012Validator(json_schema("gpudiag.training/1")).validate(document)
    return document


def read_events(path: Path) -> list[Any]:
    """All events but those of where ranks are, of which there are as many as the run takes seconds."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        Draft202012Validator(json_schema("gpudiag.event/1")).validate(event)
    return [event for event in events if event["kind"] != "ranks"]


def facts_of(finding: Any) -> dict[str, Any]:
    return {fact["name"]: fact["value"] for fact in finding["evidence"]}


@pytest.mark.each_run
def test_ddp_and_fsdp2_are_proved_measured_and_leave_nothing() -> None:
    completed = train("--strategy", "data-parallel,ddp,fsdp2", "--json")
    report = read_report(completed)
    assert_clean(completed)
    assert (completed.status, report["outcome"], report["findings"]) == (0, "pass", [])
    skipped, *ran = report["strategies"][: 1 + len(STRATEGIES)]
    assert (skipped["strategy"], skipped["outcome"]) == ("data-parallel", "skip")
    assert "two GPUs" in skipped["reason"]
    assert [result["strategy"] for result in ran] == list(STRATEGIES)
    for result in ran:
        assert (result["outcome"], result["verified"], result["world_size"]) == ("pass", True, 2)
        proved = {one["name"]: one["passed"] for one in result["verifications"]}
        if result["strategy"] == "fsdp2" and find_spec("numpy") is None:
            assert proved.pop("checkpoint") is None  # torch.distributed.checkpoint needs it
            proved["checkpoint"] = True
        assert list(proved.values()) == [True] * (PROVED + ("several_buckets" in proved))
        assert result["samples_per_second"] == pytest.approx(16 / result["step_p50_seconds"])
        assert sum(result["shares"].values()) == pytest.approx(1.0)
        assert result["scaling_efficiency"] > 0
        assert [pace["rank"] for pace in result["paces"]] == [0, 1]


@pytest.mark.parametrize(
    ("workload", "dtype", "optimizer"),
    [
        ("classification", "float32", "adam"),
        ("transformer", "bfloat16", "sgd"),
        ("convolution", "float16", "sgd"),
    ],
)
def test_every_workload_and_dtype_is_proved(workload: str, dtype: str, optimizer: str) -> None:
    flags = ("--workload", workload, "--dtype", dtype, "--optimizer", optimizer)
    completed = train(*flags, "--strategy", ",".join(STRATEGIES), "--json")
    report = read_report(completed)
    assert (completed.status, report["outcome"], report["findings"]) == (0, "pass", [])
    assert all(result["verified"] is True for result in report["strategies"])


@pytest.mark.parametrize(
    ("ranks", "strategies", "workload", "dtype", "optimizer"),
    [
        (1, ",".join(STRATEGIES), "regression", "float32", "sgd"),
        (3, ",".join(STRATEGIES), "transformer", "float32", "adam"),
        (5, ",".join(STRATEGIES), "regression", "float32", "sgd"),
        (8, "ddp", "classification", "float32", "sgd"),
    ],
)
def test_training_that_is_right_is_proved_on_any_number_of_ranks(
    ranks: int, strategies: str, workload: str, dtype: str, optimizer: str
) -> None:
    flags = ("--workload", workload, "--dtype", dtype, "--optimizer", optimizer, "--strategy", strategies)
    report = read_report(train("--nproc", str(ranks), *flags, "--steps", "4", "--json"))
    codes = [finding["code"] for finding in report["findings"] if finding["code"] != "train.single_worker"]
    assert codes == []
    assert all(result["verified"] is True for result in report["strategies"])


# The proof is the same for all strategies, and what it looks at is not: of FSDP2 gradients and parameters,
# and not the data. `python -m benchmarks.train_fault_matrix` tries all faults with all strategies.
@pytest.mark.parametrize(
    ("strategy", "fault", "code", "step"),
    [
        ("ddp", "nosync:3", "train.not_averaged", 3),
        ("ddp", "sumgrad", "train.gradients_summed", 0),
        ("ddp", "samedata", "train.same_samples", 0),
        ("ddp", "noset_epoch", "train.order_repeats", 3),
        ("ddp", "badinit", "train.initial_parameters", 0),
        ("ddp", "onebias", "train.tensor_not_averaged", 0),
        pytest.param("fsdp2", "sumgrad", "train.gradients_summed", 0, marks=_SHARDED),
        pytest.param("fsdp2", "onebias", "train.tensor_not_averaged", 0, marks=_SHARDED),
    ],
)
def test_a_fault_in_the_maths_is_found_and_named_at_once(
    strategy: str, fault: str, code: str, step: int
) -> None:
    completed = train("--strategy", strategy, "--inject", fault, "--steps", "6", "--json")
    report = read_report(completed)
    assert_clean(completed)
    assert (completed.status, report["outcome"]) == (1, "fail")
    failed = [finding for finding in report["findings"] if finding["outcome"] == "fail"]
    assert [finding["code"] for finding in failed] == [code], failed
    assert step <= facts_of(report["findings"][0])["step"] <= step + SOON
    (result,) = report["strategies"]
    assert result["verified"] is False
    assert [(one["specification"], one["fired"]) for one in result["injected"]] == [(fault, True)]


@pytest.mark.parametrize(
    ("fault", "code", "status"),
    [
        ("nan:1@3", "train.not_finite", 1),
        ("uneven", "train.uneven_steps", 1),
        ("slow:1:80", "train.straggler", 0),
        ("kill:1@3", "rank.died", 1),
        ("stop:1@3", "rank.stopped", 1),
        ("oom:1", "train.out_of_memory", 1),
    ],
)
def test_a_fault_of_one_rank_names_that_rank(fault: str, code: str, status: int) -> None:
    completed = train("--inject", fault, "--steps", "6", "--json")
    report = read_report(completed)
    assert_clean(completed)
    assert completed.status == status
    first = report["findings"][0]
    assert (first["code"], first["subject"]["kind"], first["subject"]["rank"]) == (code, "rank", 1)


def test_adam_hides_a_wrong_scale_from_parameters_but_not_from_gradients() -> None:
    report = read_report(train("--optimizer", "adam", "--inject", "sumgrad", "--json"))
    assert [finding["code"] for finding in report["findings"]] == ["train.gradients_summed"]


def test_nobody_asking_for_a_number_gets_four_ranks_on_the_cpu() -> None:
    report = run(*TRAIN, "--steps", "1", "--json", limit_seconds=LIMIT_SECONDS).document()
    assert [result["world_size"] for result in report["strategies"]] == [4]


def test_a_fault_that_never_fires_is_an_error() -> None:
    completed = train("--steps", "1", "--inject", "noset_epoch", "--json")
    report = read_report(completed)
    assert (completed.status, [finding["code"] for finding in report["findings"]]) == (
        3,
        ["inject.not_fired"],
    )


def test_one_worker_is_said_to_be_one() -> None:
    report = read_report(train("--nproc", "1", "--json"))
    assert (report["outcome"], [finding["code"] for finding in report["findings"]]) == (
        "warn",
        ["train.single_worker"],
    )


def test_torchrun_runs_several_strategies_and_prints_one_report(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    completed = torchrun_train(2, "--strategy", ",".join(STRATEGIES), "--json", "--events", str(path))
    report = read_report(completed)
    assert completed.left_behind == ()
    assert (completed.status, report["outcome"], report["findings"]) == (0, "pass", [])
    assert [result["launcher"] for result in report["strategies"]] == ["torchrun"] * len(STRATEGIES)
    assert all(result["verified"] is True for result in report["strategies"])
    events = read_events(path)
    assert [event["kind"] for event in events] == [
        *["stage", "stage", "stage", "result"] * len(STRATEGIES),
        "outcome",
    ]
    assert [event["strategy"] for event in events if event["kind"] == "result"] == report["strategies"]
    done = [0, 0, 0, 1, 1, 1, 1, 2] if SHARDS else [0, 0, 0, 1]
    assert [event["done"] for event in events] == [*done, done[-1]]


def test_a_fault_is_in_the_events_too(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    completed = train("--inject", "kill:1@3", "--json", "--events", str(path))
    assert_clean(completed)
    *_, result, finding, outcome = read_events(path)
    assert (result["strategy"]["outcome"], outcome["outcome"]) == ("fail", "fail")
    assert [finding["finding"]] == read_report(completed)["findings"]


def test_a_fault_under_torchrun_is_named_too() -> None:
    completed = torchrun_train(2, "--inject", "nosync:3", "--json")
    assert completed.status == 1
    assert read_report(completed)["findings"][0]["code"] == "train.not_averaged"


SCRIPTS = {
    "together": "import torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "dist.all_reduce(torch.ones(1))\n"
    "dist.destroy_process_group()\n",
    "alone": "print('training')\n",
    "hangs": "import time, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "def evaluate():\n    time.sleep(600)\n"
    "if dist.get_rank() == 1:\n    evaluate()\n"
    "dist.barrier()\n",
    "exits": "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(3)\ntime.sleep(600)\n",
    "raises": "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad')\ntime.sleep(600)\n",
}


@pytest.mark.parametrize(
    ("name", "status", "code", "rank"),
    [
        ("together", 0, "train.no_gradient_crossed", None),
        ("alone", 1, "train.not_parallel", None),
        ("hangs", 1, "train.script_hung", 1),
        ("exits", 1, "train.script_failed", 1),
        ("raises", 1, "rank.raised", 1),
    ],
)
def test_a_script_is_watched_and_what_its_ranks_did_is_told(
    tmp_path: Path, name: str, status: int, code: str | None, rank: int | None
) -> None:
    script = tmp_path / f"{name}.py"
    script.write_text(SCRIPTS[name])
    path = tmp_path / "events.jsonl"
    watched = ("--script", str(script), "--hang-after", "3", "--events", str(path))
    completed = train("--nproc", "3", *watched, "--json")
    report = read_report(completed)
    assert completed.left_behind == ()
    assert completed.status == status
    assert [finding["code"] for finding in report["findings"]] == ([] if code is None else [code])
    start, *findings, outcome = read_events(path)
    assert (start["stage"], outcome["outcome"]) == ("import", report["outcome"])
    assert [event["finding"] for event in findings] == report["findings"]
    if rank is not None:
        assert report["findings"][0]["subject"]["rank"] == rank


def test_a_fault_that_came_too_late_for_the_script_is_no_pass(tmp_path: Path) -> None:
    script = tmp_path / "together.py"
    script.write_text(SCRIPTS["together"])
    completed = train("--script", str(script), "--inject", "kill:1@600", "--json")
    codes = [finding["code"] for finding in read_report(completed)["findings"]]
    assert (completed.status, codes) == (3, ["inject.not_fired", "train.no_gradient_crossed"])


def test_a_script_that_hangs_under_torchrun_is_diagnosed_too(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(SCRIPTS["hangs"])
    completed = torchrun_train(3, "--script", str(script), "--hang-after", "3", "--json")
    report = read_report(completed)
    assert completed.left_behind == ()
    assert (completed.status, report["script"]["launcher"]) == (1, "torchrun")
    (finding,) = report["findings"]
    assert (finding["code"], finding["subject"]["rank"]) == ("train.script_hung", 1)
    assert facts_of(finding)["rank 1"].endswith("in evaluate")
    assert {"rank 1", "ranks 0 and 2"} < set(facts_of(finding))


def test_a_script_that_had_not_ended_in_time_did_not_pass(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text("while True:\n    pass\n")
    completed = train("--nproc", "1", "--script", str(script), "--timeout", "5", "--json")
    report = read_report(completed)
    assert (completed.status, [finding["code"] for finding in report["findings"]]) == (
        3,
        ["train.timed_out"],
    )


def test_what_a_script_prints_is_shown_and_its_arguments_arrive(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('got', sys.argv[1:])\n")
    completed = train("--nproc", "1", "--script", str(script), "--json", "--", "--epochs", "3")
    assert completed.status == 0
    assert "got ['--epochs', '3']" in completed.error
    report = read_report(completed)
    assert (report["outcome"], report["findings"][0]["code"]) == ("warn", "train.not_trained")
