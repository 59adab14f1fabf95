import math
import re
import shutil
import subprocess

import pytest
from hypothesis import given

from gpudiag.model.finding import Outcome
from gpudiag.render.prometheus import render_prometheus
from tests.unit.render.reports import (
    EMPTY,
    REPORTS,
    SICK,
    SIMULATED,
    hostile_reports,
    make_report,
    make_result,
)

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"(?:,|$)')
SAMPLE = re.compile(rf"({NAME})\{{(.*)\}} (\S+)")


def parse(text):
    """The samples of a text exposition by metric and labels; raises for what Prometheus would refuse."""
    assert text.endswith("\n")
    samples, types, helped = {}, {}, set()
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helped, "HELP twice"
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, "TYPE twice"
            assert kind == "gauge"
            types[name] = kind
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert list(types)[-1] == name, "samples of one metric stand together under its TYPE"
            pairs = LABEL.findall(labels)
            assert ",".join(f'{key}="{word}"' for key, word in pairs) == labels
            assert len({key for key, _ in pairs}) == len(pairs)
            assert math.isfinite(float(value))
            key = (name, frozenset(pairs))
            assert key not in samples, "the same series twice"
            samples[key] = float(value)
    assert set(types) == helped
    return samples


def series(report, metric):
    return {
        tuple(sorted((key, word) for key, word in labels if key != "host")): value
        for (name, labels), value in parse(render_prometheus(report)).items()
        if name == metric
    }


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_each_check_has_its_outcome(report):
    expected = {(("check", result.check), ("outcome", result.outcome.value)): 1 for result in report.results}
    assert series(report, "gpudiag_check_status") == expected
    assert series(report, "gpudiag_report_verdict") == {(("verdict", report.verdict.value),): 1}


def test_findings_are_counted_by_what_they_are_about():
    counts = {dict(labels)["code"]: value for labels, value in series(SICK, "gpudiag_finding").items()}
    assert counts == {"gpu.lost": 1, "xid.hardware": 1, "xid.application": 1, "host.shm": 1}
    lost = next(labels for labels in series(SICK, "gpudiag_finding") if dict(labels)["code"] == "gpu.lost")
    assert dict(lost)["uuid"] == "GPU-5"


def test_a_report_says_when_it_was_made_and_whether_it_is_real():
    assert series(SICK, "gpudiag_report_timestamp_seconds") == {(): SICK.snapshot.taken_at.timestamp()}
    assert [dict(labels)["simulated"] for labels in series(SIMULATED, "gpudiag_build_info")] == [
        "h100x8+lost:5"
    ]


def test_a_check_that_stands_twice_is_one_series_with_the_worst():
    report = make_report(make_result("gpu.lost", Outcome.FAIL), make_result("gpu.lost"))
    assert series(report, "gpudiag_check_status") == {(("check", "gpu.lost"), ("outcome", "fail")): 1}


@given(report=hostile_reports)
def test_nothing_breaks_the_text(report):
    text = render_prometheus(report)
    parse(text)
    text.encode()  # Prometheus reads UTF-8


@pytest.mark.parametrize("report", [SICK, EMPTY, SIMULATED], ids=["sick", "empty", "simulated"])
def test_promtool_agrees(report):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=render_prometheus(report),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
