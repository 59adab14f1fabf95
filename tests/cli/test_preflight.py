import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.errors import ExitStatus
from gpudiag.model.codec import decode
from gpudiag.model.documents import loads
from gpudiag.model.history import KnownGpus
from gpudiag.render.report_formats import REPORT_FORMATS
from gpudiag.simulate.loader import base_machines
from gpudiag.store.known_gpus import known_gpus_file, write_known_gpus
from tests.cli.simulated import Done, run_on, simulated_machine

INSTANT = ("preflight", "--level", "instant")
# One machine that has everything at once; each fault, its GPU, its code, its owner.
COMBINED = "h100x8+lost:5+row-remap-failed:2+xid:1:95+throttle:3+busy:4+pcie-width:4+nvlink-down:6:2+hang:7"
NAMED = {
    (5, "gpu.lost", "hardware"),
    (2, "memory.row_remap_failed", "hardware"),
    (1, "xid.hardware", "hardware"),
    (3, "clocks.power_brake", "hardware"),
    (4, "pcie.width_reduced", "hardware"),
    (6, "nvlink.link_down", "hardware"),
    (7, "gpu.hung", "host"),
    (None, "driver.unexpected_version", "host"),
}


@pytest.fixture
def state(tmp_path) -> dict[str, str]:
    """A state directory of this test's own."""
    return {"GPUDIAG_STATE_DIR": str(tmp_path / "state")}


def complaints(done: Done) -> list[str]:
    """What was said on standard error, but for a history that a busy machine did not read in time."""
    return [line for line in done.err.splitlines() if "in time" not in line]


def preflight(scenario: str, state: dict[str, str], *flags: str) -> Done:
    with simulated_machine(scenario) as session:
        return run_on(session, *INSTANT, *flags, **state)


@pytest.mark.sliced
@pytest.mark.parametrize("base", sorted({*base_machines()} - {"none"}))
def test_a_healthy_machine_passes_without_a_word_of_warning(base, state):
    done = preflight(base, state, "--json")
    found = [
        (result["check"], finding["code"])
        for result in done.document["results"]
        for finding in result["findings"]
        if finding["outcome"] != "pass"
    ]
    assert found == []
    assert (done.status, done.document["verdict"]) == (ExitStatus.PASS, "pass")
    assert complaints(done) == []
    assert done.left == ()


def test_a_machine_without_a_gpu_gets_one_answer_from_every_command(state):
    with simulated_machine("none") as session:
        bare = run_on(session, **state)
        gate = run_on(session, *INSTANT, **state)
        reason = run_on(session, *INSTANT, "--reason", **state)
    assert {bare.status, gate.status, reason.status} == {ExitStatus.ERROR}
    assert bare.out.startswith("ERROR cpu-1: no GPU and no trace of one")
    assert gate.out.startswith("ERROR SIMULATED none, NO GPU cpu-1")
    assert "no GPU and no trace of one" in reason.out
    assert "--expect-gpus 0" in bare.out
    assert "--expect-gpus 0" in gate.out


def test_where_no_gpu_is_expected_the_cpu_is_judged_and_what_was_skipped_is_said(state):
    done = preflight("none", state, "--expect-gpus", "0", "--verbose")
    assert done.status == ExitStatus.PASS
    assert done.out.startswith("PASS SIMULATED none, CPU ONLY")
    assert "skipped: no GPU and no trace of one" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_every_fault_of_a_broken_machine_is_named_once_worst_first(state):
    done = preflight(COMBINED, state, "--json", "--expect-driver", "999")
    assert done.status == ExitStatus.FAIL
    findings = [finding for result in done.document["results"] for finding in result["findings"]]
    named = [
        (finding["subject"].get("nvml_index"), finding["code"], finding["owner"]) for finding in findings
    ]
    assert set(named) >= NAMED
    assert len(set(named)) == len(named)
    assert all(finding["remedy"] for finding in findings)
    text = preflight(COMBINED, state, "--expect-driver", "999").out
    words = [line.split()[0] for line in text.splitlines() if line.startswith(("  FAIL", "  WARN"))]
    assert words == sorted(words)  # FAIL before WARN


def test_the_listing_and_the_bare_command_agree_with_it(state):
    sick = {index for index, code, _ in NAMED if index is not None}
    with simulated_machine(COMBINED) as session:
        listing = run_on(session, "list", **state).out
        bare = run_on(session, **state)
    rows = [line.split() for line in listing.splitlines() if line[:3].strip().isdecimal()]
    assert {int(row[0]) for row in rows if row[-1] != "ok"} == sick
    assert bare.status == ExitStatus.FAIL
    assert bare.out.startswith("FAIL")


def test_one_hung_gpu_costs_one_deadline(state):
    done = preflight("h100x8+hang:6", state)
    assert done.status == ExitStatus.FAIL
    assert done.seconds < 60  # it ends; benchmarks measure how soon
    assert done.left == ()


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (("--fail-on", "hardware"), ExitStatus.PASS),
        (("--fail-on", "host"), ExitStatus.FAIL),
        (("--fail-on", "machine"), ExitStatus.FAIL),
        ((), ExitStatus.FAIL),
    ],
)
def test_fail_on_asks_whose_fault_it_is(flags, status, state):
    assert preflight("h100x8+hang:6", state, *flags).status == status


def test_hardware_fails_the_gate_for_hardware(state):
    done = preflight("h100x8+lost:3", state, "--fail-on", "hardware", "--reason")
    assert done.status == ExitStatus.FAIL
    assert done.out.count("\n") == 1
    assert "gpu.lost" in done.out


def test_strict_fails_on_a_warning(state):
    assert preflight("h100x8+throttle:3", state).status == ExitStatus.PASS
    assert preflight("h100x8+throttle:3", state, "--strict").status == ExitStatus.FAIL


def test_expected_gpus_that_are_not_there_fail(state):
    done = preflight("h100x8", state, "--expect-gpus", "9")
    assert done.status == ExitStatus.FAIL
    assert "gpu.count" in done.out


def test_a_gpu_that_was_here_before_is_missed(state, tmp_path):
    """Neither the driver nor the bus shows it: only the history, or a recorded machine, can tell."""
    good = tmp_path / "good.json"
    assert preflight("h100x8", state, "--report", f"json={good}").status == ExitStatus.PASS
    done = preflight("h100x8+gone:5", state, "--expect", str(good))
    assert done.status == ExitStatus.FAIL
    assert "gpu.gone" in done.out


def test_what_a_good_run_noted_is_missed_by_the_listing_and_the_bare_command_too(state, monkeypatch):
    for name, value in state.items():
        monkeypatch.setenv(name, value)
    with simulated_machine("h100x8") as session:
        assert run_on(session, "preflight", "--level", "instant", **state).status == ExitStatus.PASS
    noted = known_gpus_file("simulated h100x8").read_text().partition("\n")[2]
    write_known_gpus("simulated h100x8+gone:5", decode(KnownGpus, json.loads(noted)))
    with simulated_machine("h100x8+gone:5") as session:
        listing, bare = run_on(session, "list", **state), run_on(session, **state)
    assert "that was GPU 5" in listing.out
    assert (bare.status, bare.out[:4]) == (ExitStatus.FAIL, "FAIL")
    assert "that was GPU 5" in bare.out


def test_a_good_machine_may_be_another_one_and_each_difference_is_named(state, tmp_path):
    good = tmp_path / "good.json"
    assert preflight("h200x8", state, "--report", f"json={good}").status == ExitStatus.PASS
    done = preflight("h100x8+power-cap:3", state, "--expect", str(good), "--json")
    assert done.status == ExitStatus.FAIL
    found = {
        (finding["code"], finding["evidence"][0]["name"], finding["subject"].get("nvml_index"))
        for result in done.document["results"]
        for finding in result["findings"]
        if result["check"] == "machine.expected"
    }
    assert {("machine.gpus_differ", "model", None), ("machine.differs", "power_limit", 3)} <= found
    alike = preflight("h200x8", state, "--expect", str(good), "--json")
    results = {result["check"]: result["outcome"] for result in alike.document["results"]}
    assert (alike.status, results["machine.expected"]) == (ExitStatus.PASS, "pass")


def test_a_listing_serves_as_the_recorded_machine_too(state, tmp_path):
    good = tmp_path / "good.json"
    with simulated_machine("h100x8") as session:
        run_on(session, "list", "--json", "--output", str(good), **state)
    assert preflight("h100x8", state, "--expect", str(good)).status == ExitStatus.PASS


@pytest.mark.parametrize("form", REPORT_FORMATS)
def test_every_format_is_written_beside_the_text(form, state, tmp_path):
    path = tmp_path / f"report.{form}"
    done = preflight("h100x8+lost:3", state, "--report", f"{form}={path}")
    assert done.out.startswith("FAIL")
    assert "lost" in path.read_text()


def test_several_reports_come_of_one_run(state, tmp_path):
    junit, markdown = tmp_path / "r.xml", tmp_path / "s.md"
    done = preflight("h100x8", state, "--report", f"junit={junit}", "--report", f"markdown={markdown}")
    assert done.status == ExitStatus.PASS
    checks = [check.name for check in BUILTIN if check.level.name == "INSTANT"]
    assert all(f'"{name}"' in junit.read_text() or name in junit.read_text() for name in checks)
    assert markdown.read_text()


def test_the_document_reads_back_as_the_report_it_is(state):
    done = preflight("h100x8", state, "--json")
    report = loads(done.out)
    assert report.verdict.value == "pass"
    assert len(report.results) == sum(check.level.name == "INSTANT" for check in BUILTIN)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--only", "gpu.lots"), "gpu.lost"),
        (("--skip", "pci"), "pcie"),
        (("--only", "gpu", "--skip", "gpu"), "gpu"),
        (("--level", "instand"), "instant"),
        (("--fail-on", "hard"), "hardware"),
        (("--expect", "/nowhere/good.json"), "/nowhere/good.json"),
        (("--report", "junit=/nowhere/r.xml"), "/nowhere/r.xml"),
        (("--report", "pdf=r.pdf"), "pdf"),
        (("--report", "junit"), "FORMAT=FILE"),
        (("--format", "yaml"), "yaml"),
        (("--json", "--reason"), "--reason"),
        (("--format", "junit", "--json"), "--json"),
        (("--strict", "--fail-on", "hardware"), "--strict"),
        (("--force",), "--force"),
        (("--store", "mysql://here/there"), "mysql"),
        (("--python", "/nowhere/python"), "/nowhere/python"),
        (("--expect-gpus", "-1"), "--expect-gpus"),
        (("--expect-driver", ""), "--expect-driver"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence_before_anything_starts(flags, word, state, tmp_path):
    done = preflight("h100x8", state, *flags)
    assert (done.status, done.out) == (ExitStatus.USAGE, "")
    assert word in done.err
    assert len(done.err.splitlines()) <= 2
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "gpudiag.report/99"}', "null", "[" * 100_000])
def test_an_expected_machine_that_is_none_is_refused(text, state, tmp_path):
    file = tmp_path / "good.json"
    file.write_text(text)
    done = preflight("none", state, "--expect", str(file))
    assert done.status == ExitStatus.USAGE
    assert str(file) in done.err


def test_two_reports_into_one_file_are_refused(state, tmp_path):
    path = tmp_path / "r"
    done = preflight("none", state, "--report", f"json={path}", "--report", f"junit={path}")
    assert done.status == ExitStatus.USAGE


@pytest.mark.parametrize("store", ["/proc/none/history.db", "/dev/full"])
def test_a_store_that_cannot_be_written_costs_one_line(store, state):
    done = preflight("h100x8", state, "--store", store)
    assert done.status == ExitStatus.PASS
    assert done.out.startswith("PASS")
    assert len(done.err.splitlines()) == 1


def test_a_read_only_store_costs_one_line(tmp_path, state):
    if os.geteuid() == 0 and not _can_drop_rights():
        pytest.skip("root writes to read-only files, and there is no other user to become")
    store = tmp_path / "history.db"
    assert complaints(preflight("t4x1", state, "--store", str(store))) == []
    with _read_only(tmp_path):
        done = preflight("t4x1", state, "--store", str(store))
    assert done.status == ExitStatus.PASS
    assert len(done.err.splitlines()) == 1


def test_a_full_disk_does_not_take_the_verdict_away(state):
    """The document cannot be written: it is said, and no PASS; the verdict is printed all the same."""
    done = preflight("t4x1", state, "--report", "json=/dev/full")
    assert done.out.startswith("PASS")
    assert done.status == ExitStatus.ERROR
    assert "No space left" in done.err
    failed = preflight("h100x8+lost:3", state, "--report", "json=/dev/full")
    assert failed.status == ExitStatus.FAIL


def test_a_full_file_system_costs_the_history_one_line(tmp_path, state):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system can only be mounted by root: {mounted.stderr.decode().strip()}")
    try:
        (place / "filler").write_bytes(bytes(8192))
        done = preflight("h100x8", state, "--store", str(place / "history.db"))
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert done.out.startswith("PASS")
    assert done.status == ExitStatus.PASS
    assert len(done.err.splitlines()) == 1


def test_the_history_remembers_the_run(state):
    with simulated_machine("h100x8") as session:
        run_on(session, "preflight", "--only", "gpu", **state)
        done = run_on(session, "history", "--json", **state)
    history = done.document
    assert done.status == ExitStatus.PASS
    assert [run["outcome"] for run in history["runs"]] == ["pass"]
    assert len(history["gpus"]) == 8


def test_a_part_of_the_checks_makes_no_machine_to_compare_with(state):
    with simulated_machine("h100x8") as session:
        run_on(session, "preflight", "--only", "gpu", **state)
        done = run_on(session, *INSTANT, "--json", **state)
    skipped = {result["check"] for result in done.document["results"] if result["outcome"] == "skip"}
    assert "machine.settings" in skipped


def test_the_list_says_what_each_check_reads_and_whether_that_was_confirmed(state):
    with simulated_machine("none") as session:
        done = run_on(session, "preflight", "--list", **state)
    assert done.status == ExitStatus.PASS
    assert all(f"{check.name}:" in done.out for check in BUILTIN)
    assert "unconfirmed" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_only_runs_what_it_names(state):
    done = preflight("h100x8", state, "--only", "gpu.lost,pcie", "--json")
    names = [result["check"] for result in done.document["results"]]
    assert names[0] == "gpu.lost"
    assert {name.partition(".")[0] for name in names} == {"gpu", "pcie"}


def test_simulated_gpus_compute_nothing_and_say_so(state):
    with simulated_machine("h100x8") as session:
        done = run_on(session, "preflight", "--json", **state)
    results = {result["check"]: result for result in done.document["results"]}
    for name in ("collective.all_reduce", "active.ranks", "bandwidth.memory"):
        assert results[name]["outcome"] == "skip"
        assert "simulated" in results[name]["reason"]
    assert done.status == ExitStatus.PASS


def test_no_torch_is_an_error_with_the_command_that_installs_it(state):
    with simulated_machine("none+no-torch") as session:
        done = run_on(session, "preflight", "--json", **state)
        text = " ".join(run_on(session, "preflight", **state).out.split())
    results = {result["check"]: result for result in done.document["results"]}
    unmeasured = ("collective.all_reduce", "active.ranks", "train.ddp")
    assert {results[name]["outcome"] for name in unmeasured} == {"error"}
    (reason,) = {results[name]["reason"] for name in unmeasured}
    assert "pip install torch" in reason
    assert text.count("pip install torch") == 1  # what all of them lack is one line
    assert done.status == ExitStatus.ERROR


@pytest.mark.ranks
def test_a_machine_without_a_gpu_verifies_an_all_reduce(state):
    with simulated_machine("none") as session:
        done = run_on(session, "preflight", "--json", "--expect-gpus", "0", **state)
    results = {result["check"]: result for result in done.document["results"]}
    assert results["collective.all_reduce"]["outcome"] == "pass"
    measured = done.document["measures"]["collective"]
    assert all(result["verified"] for result in measured["results"])
    assert done.status == ExitStatus.PASS
    assert done.left == ()


@pytest.mark.sliced
@pytest.mark.ranks
@pytest.mark.timeout(300)
def test_standard_screens_for_silent_corruption_on_cpu_ranks(state):
    with simulated_machine("none") as session:
        done = run_on(
            session, "preflight", "--level", "standard", "--only", "compute,active", "--expect-gpus", "0",
            "--json",
            **state,
        )  # fmt: skip
    results = {result["check"]: result["outcome"] for result in done.document["results"]}
    assert results["compute.determinism"] == "pass"
    assert results["active.ranks"] == "pass"
    screened = done.document["measures"]["active"]["determinism"]
    assert {result["rank"] for result in screened} == {0, 1, 2, 3}
    assert {result["chain"] for result in screened} == {"matmul", "attention", "reduction"}
    assert "about" in done.err  # its cost was said before


def _can_drop_rights() -> bool:
    return shutil.which("chattr") is not None


class _read_only:
    """A directory in which nothing can be written, also by root where the file system knows how."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        for path in (self.folder, *self.folder.iterdir()):
            if path.is_file():
                path.chmod(0o444)
        self.folder.chmod(0o555)
        if os.geteuid() == 0:
            done = subprocess.run(["chattr", "+i", *self._files()], check=False, capture_output=True)
            if done.returncode:
                self.__exit__()
                pytest.skip("this file system cannot keep root from writing")

    def __exit__(self, *_: object) -> None:
        if os.geteuid() == 0:
            subprocess.run(["chattr", "-i", *self._files()], check=False, capture_output=True)
        self.folder.chmod(0o755)

    def _files(self) -> list[str]:
        return [str(self.folder), *(str(path) for path in self.folder.iterdir() if path.is_file())]


def test_documents_say_their_schema(state):
    assert json.loads(preflight("none", state, "--json").out)["schema"] == "gpudiag.report/1"
