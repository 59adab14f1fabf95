import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import from_document
from gpudiag.simulate.loader import base_machines
from tests.cli.simulated import Done, run_gpudiag, run_on, simulated_machine

# The deadline that the tests give, and what the issue allows above it.
DEADLINE = ("--deadline", "1")
WITHIN_SECONDS = 60  # proves that it ends, where the hang never does, and not how fast
HEALTHY_MACHINES = sorted(set(base_machines()) - {"none"})


def snapshot_of(done: Done) -> Snapshot:
    noun = from_document(done.document)
    assert isinstance(noun, Snapshot)
    return noun


def state_of(done: Done, source: str) -> str:
    return str(next(status["state"] for status in done.document["sources"] if status["name"] == source))


def fields_without_value_or_reason(noun: dict[str, Any]) -> list[str]:
    missing = noun.get("missing", {})
    return [name for name, value in noun.items() if value is None and name not in missing]


def test_eight_gpus_seen_by_three_sources_that_agree() -> None:
    done = run_gpudiag("h100x8", "list", "--sources", "all", "--json")
    assert (done.status, done.err) == (ExitStatus.PASS, "")
    document = done.document
    assert document["simulated"] == "h100x8"
    assert len(document["devices"]) == 8
    assert [state_of(done, source) for source in ("nvml", "gputil", "torch")] == ["ok", "ok", "ok"]
    assert [item for item in document["disagreements"] if not item["expected"]] == []
    for device in document["devices"]:
        assert fields_without_value_or_reason(device) == []
    views = [view for view in document["views"] if view["source"] == "gputil"]
    assert [view["uuid"] for view in views] == [device["uuid"] for device in document["devices"]]


@pytest.mark.sliced
@pytest.mark.parametrize("machine", HEALTHY_MACHINES)
def test_a_healthy_machine_of_any_kind_passes_without_a_disagreement(machine: str) -> None:
    with simulated_machine(machine) as session:
        listed = run_on(session, "list", "--sources", "nvml,gputil,torch", "--deadline", "20", "--json")
        overview = run_on(session)
    assert listed.status == ExitStatus.PASS
    assert [item for item in listed.document["disagreements"] if not item["expected"]] == []
    assert overview.status == ExitStatus.PASS, overview.out
    assert overview.out.startswith("PASS ")


def test_nvml_alone_is_asked_unless_it_has_no_answer() -> None:
    done = run_gpudiag("h100x8", "list", "--json")
    assert [state_of(done, source) for source in ("nvml", "gputil", "torch")] == [
        "ok",
        "not_asked",
        "not_asked",
    ]


def test_a_hung_gpu_is_in_its_row_and_ends_with_the_deadline() -> None:
    done = run_gpudiag("h100x8+hang:6", "list", "--json", *DEADLINE)
    assert done.status == ExitStatus.PASS
    devices = snapshot_of(done).devices
    assert [device.id.nvml_index for device in devices] == list(range(8))
    assert [device.responding is True for device in devices] == [True] * 6 + [False, True]
    assert done.document["devices"][6]["missing"]["responding"] == "timed_out"
    assert done.seconds < WITHIN_SECONDS
    assert done.left == ()


def test_a_lost_gpu_keeps_its_row() -> None:
    done = run_gpudiag("h100x8+lost:3", "list", "--json")
    by_index = {device["nvml_index"]: device for device in done.document["devices"]}
    assert by_index[3]["missing"]["responding"] == "device_lost"
    assert by_index[2]["memory_total_bytes"] > 0
    assert len(by_index) == 8


BROKEN = {
    "no-library": "library_absent",
    "no-driver": "driver_not_loaded",
    "version-mismatch": "version_mismatch",
    "no-permission": "no_permission",
    "zero-gpus": "no_devices",
    "init-hang": "timed_out",
}


@pytest.mark.sliced
@pytest.mark.parametrize(("fault", "state"), BROKEN.items())
def test_each_way_of_being_broken_is_told_apart_and_fails(fault: str, state: str) -> None:
    with simulated_machine(f"h100x8+{fault}") as session:
        listed = run_on(session, "list", "--json", *DEADLINE)
        text = run_on(session, "list", *DEADLINE)
        overview = run_on(session)
    assert (listed.status, state_of(listed, "nvml")) == (ExitStatus.PASS, state)
    assert [done.status for done in (text, overview)] == [ExitStatus.PASS, ExitStatus.FAIL]
    assert overview.out.startswith("FAIL ")
    assert [done.left for done in (listed, text, overview)] == [(), (), ()]


def test_the_ways_of_being_broken_read_differently() -> None:
    texts = [run_gpudiag(f"h100x8+{fault}").out.replace(fault, "") for fault in BROKEN]
    assert len(set(texts)) == len(BROKEN)


def test_a_machine_without_a_gpu_says_what_each_source_said() -> None:
    with simulated_machine("none") as session:
        listed = run_on(session, "list", "--json", "--deadline", "20")
        overview = run_on(session)
    assert listed.status == ExitStatus.PASS
    assert listed.document["devices"] == []
    statuses = {status["name"]: status for status in listed.document["sources"]}
    for source in ("nvml", "gputil"):
        assert statuses[source]["state"] not in ("ok", "not_asked")
        assert statuses[source]["reason"]
    assert statuses["torch"]["state"] == "not_asked"  # it takes seconds to load
    assert "--sources all" in statuses["torch"]["reason"]
    assert overview.status == ExitStatus.ERROR
    assert "no GPU and no trace of one" in overview.out


@pytest.mark.parametrize(("fault", "word"), [("lost:3", "LOST"), ("hang:6", "HUNG")])
def test_list_and_the_bare_command_tell_the_same(fault: str, word: str) -> None:
    with simulated_machine(f"h100x8+{fault}") as session:
        listed = run_on(session, "list", *DEADLINE)
        overview = run_on(session)
    number = fault.partition(":")[2]
    rows = [line.split() for line in listed.out.splitlines() if word in line.split()]
    assert [row[0] for row in rows] == [number]
    assert overview.status == ExitStatus.FAIL
    assert f"GPU {number} " in overview.out
    assert f"1 {word.lower()}" in overview.out.replace("\n ", "")


def test_wide_and_sources_are_text_for_people() -> None:
    with simulated_machine("h100x8") as session:
        wide = run_on(session, "list", "--wide")
        sources = run_on(session, "list", "--sources", "all")
    for done in (wide, sources):
        assert done.status == ExitStatus.PASS
        assert done.out.startswith("SIMULATED h100x8")
        assert max(len(line) for line in done.out.splitlines()) <= 80
    assert wide.out.count("serial") == 8
    assert "No disagreement between the sources." in sources.out or "explained:" in sources.out


def test_a_disagreement_is_told_once() -> None:
    text = run_gpudiag("h100x8+lost:1", "list", "--sources", "all").out
    assert text.count("whether a CUDA context starts") == 1


def test_free_ids_are_what_cuda_takes() -> None:
    with simulated_machine("h100x8+busy:0+lost:1") as session:
        document = run_on(session, "list", "--json").document
        ids = run_on(session, "list", "--free", "2", "--ids")
        people = run_on(session, "list", "--free", "2")
    uuids = {device["nvml_index"]: device["uuid"] for device in document["devices"]}
    assert (ids.status, ids.out) == (ExitStatus.PASS, f"{uuids[2]},{uuids[3]}\n")
    assert uuids[2] in people.out


def test_too_few_free_gpus_leave_standard_output_empty() -> None:
    done = run_gpudiag("h100x8+busy:0", "list", "--free", "8", "--ids")
    assert (done.status, done.out) == (ExitStatus.FAIL, "")
    assert "7 of 8" in done.err
    assert "GPU 0" in done.err


def test_free_without_a_number_is_one() -> None:
    with simulated_machine("h100x8+busy:0") as session:
        without, one = (
            run_on(session, "list", "--free", "--ids"),
            run_on(session, "list", "--free", "1", "--ids"),
        )
        text = run_on(session, "list", "--free")
    assert (without.status, without.out) == (ExitStatus.PASS, one.out)
    assert "CUDA_VISIBLE_DEVICES" in text.out


def test_the_document_says_which_gpus_are_free_as_the_list_does() -> None:
    with simulated_machine("h100x8+busy:0+lost:1+xid:3:79") as session:
        enough, fewer = (
            run_on(session, "list", "--json", "--free"),
            run_on(session, "list", "--free", "8", "--json"),
        )
        table, plain = run_on(session, "list"), run_on(session, "list", "--json")
    marks = {device["nvml_index"]: device["free"] for device in enough.document["devices"]}
    assert marks == {0: False, 1: False, 2: True, 3: False, 4: True, 5: True, 6: True, 7: True}
    assert "Free: GPUs 2 4 5 6 7." in table.out
    assert (enough.status, enough.err) == (ExitStatus.PASS, "")
    assert fewer.status == ExitStatus.FAIL
    assert {device["nvml_index"]: device["free"] for device in fewer.document["devices"]} == marks
    assert "5 of 8" in fewer.err
    # Without --free nothing is judged, and nothing is called free.
    assert {device["free"] for device in plain.document["devices"]} == {None}
    assert {device["missing"]["free"] for device in plain.document["devices"]} == {"not_asked"}


@pytest.mark.parametrize(
    "other", [("--ids", "--json"), ("--wide",), ("--sources", "all"), ("--watch", "2", "--json")]
)
def test_free_beside_what_it_cannot_go_with_is_a_usage_error(other: tuple[str, ...]) -> None:
    done = run_gpudiag("h100x8", "list", "--free", *other)
    assert (done.status, done.out) == (ExitStatus.USAGE, "")
    assert done.err.startswith("gpudiag: --")


def test_a_job_is_offered_only_what_it_was_given() -> None:
    done = run_gpudiag("h100x8", "list", "--free", "3", "--ids", CUDA_VISIBLE_DEVICES="4,5")
    assert done.status == ExitStatus.FAIL
    assert "2 of 3" in done.err


def test_free_where_nvml_does_not_work_is_not_called_none_free() -> None:
    done = run_gpudiag("h100x8+no-driver", "list", "--free", "1", "--ids")
    assert (done.status, done.out) == (ExitStatus.ERROR, "")


def test_output_holds_the_document_that_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text("an older one")
    done = run_gpudiag("h100x8", "list", "--json", "--output", str(path))
    assert path.read_text() == done.out
    assert list(tmp_path.iterdir()) == [path]


def test_output_beside_the_table_is_the_document(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    done = run_gpudiag("h100x8", "list", "--output", str(path))
    assert "GPU NAME" in done.out
    assert len(json.loads(path.read_text())["devices"]) == 8


def test_a_document_recorded_here_is_a_machine_to_simulate(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    recorded = run_gpudiag("t4x1", "list", "--json", "--output", str(path))
    again = run_gpudiag(str(path), "list", "--json")
    assert [device["uuid"] for device in again.document["devices"]] == [
        device["uuid"] for device in recorded.document["devices"]
    ]


@pytest.mark.parametrize("flags", [("--json",), ("--wide",), ()])
def test_arguments_that_need_no_parser_mean_the_same_with_one(flags: tuple[str, ...]) -> None:
    with simulated_machine("h100x8+lost:3") as session:
        plain = run_on(session, "list", *flags)
        parsed = run_on(session, "list", *flags, "--deadline", "5")
    if flags == ("--json",):
        assert without_times(plain.document) == without_times(parsed.document)
    else:
        assert plain == replace(parsed, seconds=plain.seconds)


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    sources = [{**status, "seconds": None} for status in document["sources"]]
    machine = {**document["machine"], "memory_available_bytes": None}
    return {**document, "taken_at": None, "sources": sources, "machine": machine}


def test_colour_is_forced_or_forbidden() -> None:
    with simulated_machine("h100x8+lost:3") as session:
        assert "\x1b[" in run_on(session, "list", FORCE_COLOR="1").out
        assert "\x1b[" not in run_on(session, "list", FORCE_COLOR="1", NO_COLOR="1").out


@pytest.mark.parametrize("option", ["--watch", "--deadline"])
def test_a_time_that_is_not_a_number_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", option, "nan"]) == ExitStatus.USAGE
    assert option in capsys.readouterr().err


def test_a_driver_that_hangs_says_why_the_other_sources_were_not_asked() -> None:
    done = run_gpudiag("h100x8+init-hang", "list", *DEADLINE, "--json")
    reasons = {status["name"]: status["reason"] for status in done.document["sources"]}
    assert [state_of(done, source) for source in ("gputil", "torch")] == ["not_asked", "not_asked"]
    assert all("--sources all" in reasons[source] for source in ("gputil", "torch"))
