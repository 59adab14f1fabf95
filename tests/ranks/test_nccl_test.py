"""`gpudiag nccl-test` whole, on real gloo ranks: exact data, named ranks, nothing left behind."""

import json
import os
import signal
import socket
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpudiag.model.documents import json_schema
from gpudiag.model.operation import OPERATIONS
from tests.ranks.nccl_test_command import (
    GPUDIAG,
    Completed,
    nccl_test,
    run,
    started,
    torchrun,
)

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(400)]

TORCH = tuple(int(part) for part in version("torch").split(".")[:2])
# In reduce_scatter, whatever is asked (tools/torches.py runs these tests with such a torch).
GLOO_ADDS = TORCH < (
    2,
    9,
)
SMALL = ("--max-bytes", "64", "--iterations", "4", "--json")


def assert_clean(completed: Completed) -> None:
    assert completed.left_behind == ()
    assert "Traceback" not in completed.error


def assert_valid(document: Any) -> None:
    Draft202012Validator(json_schema(document["schema"])).validate(document)


@pytest.mark.each_run
def test_four_ranks_are_exact_at_every_size() -> None:
    completed = nccl_test("--nproc", "4", "--max-bytes", "1M", "--step-factor", "16", "--json")
    document = completed.document()
    assert_clean(completed)
    assert_valid(document)
    assert (completed.status, document["outcome"], document["findings"]) == (0, "pass", [])
    assert (document["backend"], document["world_size"], document["launcher"]) == ("gloo", 4, "spawn")
    assert [result["size_bytes"] for result in document["results"]] == [8, 128, 2048, 32768, 524288]
    for result in document["results"]:
        assert result["verified"] is True
        assert result["wrong_elements"] == 0
        assert result["verified_iterations"] == result["iterations"] >= 5
        assert result["algbw_bytes_per_second"] == pytest.approx(
            result["size_bytes"] / result["time_p50_seconds"]
        )
        assert result["busbw_bytes_per_second"] == pytest.approx(result["algbw_bytes_per_second"] * 2 * 3 / 4)
    assert [(rank["rank"], rank["exit"]) for rank in document["ranks"]] == [(rank, 0) for rank in range(4)]


@pytest.mark.parametrize("reduce", ["sum", "min", "max"])
def test_every_operation_and_dtype_is_exact_without_a_warning(reduce: str) -> None:
    flags = (
        "--op",
        "all",
        "--dtype",
        "all",
        "--reduce",
        reduce,
        "--min-bytes",
        "1003",
        "--max-bytes",
        "1003",
    )
    completed = nccl_test("--nproc", "4", *flags, "--iterations", "2", "--warmup", "0", "--json")
    document = completed.document()
    assert_clean(completed)
    assert_valid(document)
    kinds = {(result["op"], result["dtype"]) for result in document["results"]}
    # Every operation with every dtype of gloo, and the barrier.
    assert len(kinds) == (len(OPERATIONS) - 1) * 8 + 1
    adds = {"reduce_scatter"} if GLOO_ADDS and reduce != "sum" else set()
    codes = [finding["code"] for finding in document["findings"]]
    assert (document["outcome"], codes) == (
        ("fail", ["collective.wrong_reduction"]) if adds else ("pass", [])
    )
    assert {result["op"] for result in document["results"] if result["verified"] is not True} == adds


@pytest.mark.skipif(GLOO_ADDS, reason="gloo of this torch has no averages, or sums in their place")
@pytest.mark.parametrize("world_size", ["3", "4"])
def test_averages_zero_sizes_and_unaligned_buffers_are_exact_too(world_size: str) -> None:
    flags = ("--op", "all", "--dtype", "float32,bfloat16", "--reduce", "avg", "--unaligned")
    sizes = ("--min-bytes", "0", "--max-bytes", "12345", "--step-factor", "1000")
    completed = nccl_test("--nproc", world_size, *flags, *sizes, "--iterations", "2", "--json")
    document = completed.document()
    assert (completed.status, document["outcome"]) == (0, "pass")
    assert {result["size_bytes"] for result in document["results"]} >= {0}
    assert all(result["unaligned"] for result in document["results"] if result["op"] != "barrier")


def test_thousands_of_rounds_raise_no_alarm() -> None:
    completed = nccl_test("--nproc", "2", "--max-bytes", "8", "--iterations", "4000", "--json")
    (result,) = completed.document()["results"]
    assert (completed.status, result["verified_iterations"], result["wrong_elements"]) == (0, 4000, 0)


def test_one_rank_runs_what_needs_no_other_and_has_no_bus_bandwidth() -> None:
    """An operation that does not declare its `least_ranks` sends to itself here."""
    document = nccl_test("--nproc", "1", "--op", "all", *SMALL).document()
    assert document["outcome"] == "pass", document["findings"]
    alone = {op for op, operation in OPERATIONS.items() if operation.runs_on(1)}
    assert {result["op"] for result in document["results"]} == alone >= {"all_reduce", "gather", "barrier"}
    assert all(result["busbw_bytes_per_second"] is None for result in document["results"])
    assert all(
        result["missing"]["busbw_bytes_per_second"] == "not_supported" for result in document["results"]
    )


@pytest.mark.each_run
def test_a_flipped_bit_fails_and_names_rank_offset_and_mask() -> None:
    completed = nccl_test("--nproc", "4", "--inject", "bitflip:1@3", *SMALL)
    document = completed.document()
    assert_clean(completed)
    assert_valid(document)
    assert (completed.status, document["outcome"]) == (1, "fail")
    (finding,) = document["findings"]
    assert finding["code"] == "collective.corrupted"
    assert (finding["subject"]["kind"], finding["subject"]["rank"]) == ("rank", 1)
    facts = {fact["name"]: fact["value"] for fact in finding["evidence"]}
    assert (facts["size_bytes"], facts["iteration"]) == (8, 3)
    assert (facts["first_offset"], facts["wrong_elements"], facts["xor_mask"]) == (1, 1, "0x1")
    assert len(document["results"]) == 4  # wrong data stops nothing
    assert [(fault["specification"], fault["fired"]) for fault in document["injected"]] == [
        ("bitflip:1@3", True)
    ]


@pytest.mark.parametrize(("fault", "code"), [("kill:2@5", "rank.died"), ("stop:2@5", "rank.stopped")])
def test_a_dead_or_stopped_rank_is_named_with_its_evidence(fault: str, code: str, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    completed = nccl_test("--nproc", "4", "--inject", fault, "--events", str(events), *SMALL)
    document = completed.document()
    assert_clean(completed)
    assert_valid(document)
    assert (completed.status, document["outcome"]) == (1, "fail")
    cause = document["findings"][0]
    assert (cause["code"], cause["subject"]["rank"]) == (code, 2)
    assert "iteration 5" in cause["message"]
    assert [result["size_bytes"] for result in document["results"]] == [8]  # the size that was done stays
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    found = next(line for line in lines if line["kind"] == "finding")
    measured = next(line for line in lines if line["kind"] == "result")
    assert found["at_seconds"] > measured["at_seconds"]


def test_a_fault_that_never_fires_is_an_error() -> None:
    completed = nccl_test("--nproc", "2", "--inject", "kill:1@100000", *SMALL)
    document = completed.document()
    assert (completed.status, document["outcome"]) == (3, "error")
    assert [finding["code"] for finding in document["findings"]] == ["inject.not_fired"]


def test_events_tell_each_size_as_it_is_done_and_end_with_the_outcome(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    output = tmp_path / "report.json"
    completed = nccl_test("--nproc", "2", *SMALL, "--events", str(events), "--output", str(output))
    assert json.loads(output.read_text()) == completed.document()
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for line in lines:
        assert_valid(line)
    places = [line["ranks"] for line in lines if line["kind"] == "ranks"]
    assert {tuple(rank["rank"] for rank in ranks) for ranks in places} == {(0, 1)}
    assert [line["kind"] for line in lines if line["kind"] != "ranks"] == [
        *["stage", "stage", *["result"] * 4, "outcome"],
    ]
    assert [line["done"] for line in lines if line["kind"] == "result"] == [1, 2, 3, 4]
    assert lines[-1]["outcome"] == "pass"


def test_events_that_cannot_be_written_cost_a_line_and_never_the_report() -> None:
    completed = nccl_test("--nproc", "2", *SMALL, "--events", "/dev/full")
    assert (completed.status, completed.document()["outcome"]) == (0, "pass")
    assert [line.startswith("gpudiag: ") for line in completed.error.splitlines()] == [True]
    assert completed.left_behind == ()


def test_text_is_the_default_and_nothing_else_is_printed() -> None:
    completed = nccl_test("--nproc", "2", *SMALL[:-1])
    assert completed.output.startswith("PASS CPU ONLY: all_reduce, 2 gloo ranks, 4 sizes exact")
    assert completed.error == ""
    assert max(map(len, completed.output.splitlines())) <= 80


def test_ctrl_c_ends_with_130_and_leaves_no_process() -> None:
    with started(*GPUDIAG, "--nproc", "2", "--iterations", "100000", "--max-bytes", "8") as running:
        time.sleep(3.0)  # somewhere in the sweep; earlier is as good
        running.process.send_signal(signal.SIGINT)
        completed = running.finish()
    assert completed.status == 130
    assert completed.left_behind == ()


@pytest.mark.each_run
def test_ctrl_c_keeps_the_sizes_that_were_measured(tmp_path: Path) -> None:
    events = tmp_path / "events"
    plan = ("--nproc", "2", "--iterations", "500", "--max-bytes", "1M", "--events", str(events))
    with started(*GPUDIAG, *plan) as running:
        process = running.process
        while process.poll() is None and not (events.exists() and '"kind": "result"' in events.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        completed = running.finish()
    assert completed.status == 130
    assert "busbw GB/s" in completed.output
    assert " planned results were measured before the end, and nothing was judged" in completed.error


@pytest.mark.each_run
def test_torchrun_prints_one_report() -> None:
    completed = torchrun(2, *SMALL)
    document = completed.document()
    assert completed.left_behind == ()
    assert_valid(document)
    assert (completed.status, document["outcome"], document["launcher"]) == (0, "pass", "torchrun")
    assert document["world_size"] == 2
    assert len(document["results"]) == 4


def test_torchrun_with_a_fault_prints_one_report_that_names_the_rank() -> None:
    completed = torchrun(2, "--inject", "stop:0@5", *SMALL)
    document = completed.document()
    assert completed.left_behind == ()
    assert (completed.status, document["outcome"]) == (1, "fail")
    cause = document["findings"][0]
    assert (cause["code"], cause["subject"]["rank"]) == ("rank.stopped", 0)


def test_bit_flips_under_torchrun_are_seen_by_the_rank_that_holds_them() -> None:
    completed = torchrun(2, "--inject", "bitflip:1@2", *SMALL)
    document = completed.document()
    assert (completed.status, document["findings"][0]["subject"]["rank"]) == (1, 1)


@pytest.mark.skipif(TORCH < (2, 5), reason="this torch does not name the port")
def test_a_port_that_another_process_has_is_told_with_that_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        place = ("RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}")
        completed = run("env", *place, *GPUDIAG, *SMALL)
    assert_clean(completed)
    (finding,) = completed.document()["findings"]
    assert (completed.status, finding["code"], finding["subject"]["rank"]) == (1, "rank.raised", 0)
    assert f"another process has port {port} (process {os.getpid()}" in finding["message"]
    assert "another MASTER_PORT" in finding["remedy"]
