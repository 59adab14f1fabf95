import re

import pytest
from hypothesis import given

from gpudiag.model.finding import Outcome
from gpudiag.render.ci import MAX_ANNOTATIONS, render_github
from tests.unit.render.reports import (
    EMPTY,
    HEALTHY,
    REPORTS,
    SICK,
    hostile_reports,
    make_finding,
    make_report,
    make_result,
)

COMMAND = re.compile(r"::(notice|warning|error) title=([^:,\r\n]*)::([^\r\n]*)")


def read(text):
    """The annotations as the runner reads them: level, title, message."""
    lines = text.removesuffix("\n").split("\n")
    commands = [COMMAND.fullmatch(line) for line in lines]
    assert all(commands), lines
    return [(match[1], unescape(match[2]), unescape(match[3])) for match in commands]


def unescape(text):
    for escape, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(escape, character)
    return text


def test_each_fault_is_an_annotation_of_its_level():
    (_, *annotations) = read(render_github(SICK))
    assert [(level, title) for level, title, _ in annotations] == [
        ("error", "FAIL gpu.lost"),
        ("error", "FAIL xid.hardware"),
        ("error", "ERROR torch.build"),
        ("warning", "WARN xid.application"),
        ("warning", "WARN host.shm"),
    ]
    assert "power-cycle" in annotations[0][2]


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_verdict_is_a_notice(report):
    level, title, message = read(render_github(report))[0]
    assert (level, title) == ("notice", "gpudiag")
    assert message.startswith(report.verdict.value.upper())


@pytest.mark.parametrize("report", [HEALTHY, EMPTY])
def test_without_faults_there_is_only_the_verdict(report):
    assert len(read(render_github(report))) == 1


def test_there_are_no_more_than_github_shows():
    many = make_report(
        make_result("x", Outcome.FAIL, *[make_finding()] * 50, *[make_finding("w", Outcome.WARN)] * 50)
    )
    levels = [level for level, _, _ in read(render_github(many))]
    assert (levels.count("error"), levels.count("warning")) == (MAX_ANNOTATIONS, MAX_ANNOTATIONS)


@given(report=hostile_reports)
def test_nothing_breaks_a_command(report):
    read(render_github(report))
