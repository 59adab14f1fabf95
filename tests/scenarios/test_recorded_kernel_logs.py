"""What two real drivers logged, through the kernel's own file, gpudiag's probes and the gate; and what the
gate said there.

Xid 31 is three lines behind four of the driver's start that are no fault; Xid 13 is four lines, with Xid 43
after them.
"""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks, verdict
from gpudiag.explain.recipe import explain
from gpudiag.model.context import Context
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.report import Report
from gpudiag.render.report_text import render_report_text
from tests.recorded_machines import CORPUS, read_recorded
from tests.scenarios.situations import look_at_machine

LINE = re.compile(r"\[\s*([\d.]+)\] (.*)")
UPTIME_SECONDS = 600.0  # of the base machine
LOGS = {"h100": "h100/kernel-log-xid31.txt", "h200": "h200/kernel-log-xid13-43.txt"}


def lines_of(name: str) -> list[tuple[float, str]]:
    """The seconds since boot and the text of each line."""
    return [(float(at), text.rstrip()) for at, text in LINE.findall(read_recorded(LOGS[name]))]


@cache
def report_with(name: str, until_seconds: float = UPTIME_SECONDS) -> Report:
    """What is judged on that machine when its kernel log holds the lines up to that moment since boot."""
    text = f'base = "{name}-vm"\n'
    for at, line in lines_of(name):
        if at <= until_seconds:
            escaped = line.replace("\\", "\\\\").replace('"', '\\"')
            text += f'[[kernel_log]]\nage_seconds = {UPTIME_SECONDS - at}\ntext = "{escaped}"\n'
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(text)
        look = look_at_machine(str(path), kernel_log=True)
    results = run_checks(Context(look), [check for check in BUILTIN if "kernel_log" in check.name])
    return Report(verdict(results), results, look)


def only_finding(name: str) -> Finding:
    (finding,) = report_with(name).findings()
    return finding


def evidence(finding: Finding) -> dict[str, object]:
    return {fact.name: fact.value for fact in finding.evidence}


def test_the_lines_of_a_starting_driver_are_no_fault():
    start = [text for at, text in lines_of("h100") if at < 10]
    assert len(start) == 5
    assert any("FBHUB Interrupt" in text for text in start)
    report = report_with("h100", until_seconds=10)
    assert (report.verdict, report.findings()) == (Outcome.PASS, ())


def test_an_mmu_fault_of_a_job_is_one_finding_with_its_whole_line():
    finding = only_finding("h100")
    assert (finding.code, finding.outcome, finding.blocks_jobs) == ("xid.application", Outcome.WARN, False)
    facts = evidence(finding)
    assert facts["line"] == lines_of("h100")[-1][1]
    assert facts["line"].endswith("FAULT_PDE ACCESS_TYPE_VIRT_WRITE")
    assert (facts["xid"], facts["process"], facts["recovery_action"]) == (31, "python3 (pid 2701)", "none")


def test_an_exception_of_a_kernel_is_one_finding_with_what_followed():
    finding = only_finding("h200")
    assert (finding.code, finding.outcome, finding.blocks_jobs) == ("xid.application", Outcome.WARN, False)
    facts = evidence(finding)
    assert (facts["xid"], facts["place"], facts["followers"]) == (13, "GPC 1, TPC 4", "Xid 13 x3, Xid 43")


# What the gate prints today, and what it printed there: but for the host, the time, and the line that was
# cut.
SAID = {"h100": "h100/preflight-after-xid31.txt", "h200": "h200/said-quick-memory-full.txt"}


def of_the_gpu(text: str) -> str:
    """The paragraph about the GPU as one line, without times."""
    paragraph = next(part for part in text.split("\n\n") if part.startswith("GPU 0 "))
    words = " ".join(paragraph.split())
    return re.sub(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)? UTC|\d{4}-\d\d-\d\dT\S+", "TIME", words)


@pytest.mark.parametrize("name", LOGS)
def test_the_gate_says_what_it_said_there(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    said, now = of_the_gpu(read_recorded(SAID[name])), of_the_gpu(render_report_text(report_with(name)))
    assert now == said.replace("ACCESS_T (kernel log)", "ACCESS_TYPE_VIRT_WRITE (kernel log)")
    assert (now == said) == (name == "h200")


@pytest.mark.parametrize(("name", "xids"), [("h100", ["Xid 31"]), ("h200", ["Xid 13", "Xid 43"])])
def test_explain_reads_the_log_alone(name: str, xids: list[str]):
    found = explain((str(CORPUS / LOGS[name]),))
    told = " ".join(found.verdict.driver_errors)
    assert re.findall(r"Xid \d+", told) == xids
