import json

import pytest
from hypothesis import given

from gpudiag.model.documents import loads
from gpudiag.render.report_formats import REPORT_FORMATS, render_json, render_report
from tests.unit.render.reports import REPORTS, SICK, hostile_reports


def test_the_formats_are_those_of_the_command_line():
    assert REPORT_FORMATS == ("text", "json", "junit", "markdown", "prometheus", "github")


@pytest.mark.parametrize("name", REPORT_FORMATS)
def test_every_format_ends_its_last_line(name):
    text = render_report(name, SICK)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_document_is_the_report(report):
    text = render_json(report)
    assert text.count("\n") == 1
    assert loads(text) == report


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


@given(report=hostile_reports)
def test_the_document_is_json_whatever_is_in_it(report):
    document = json.loads(render_json(report), parse_constant=refuse)
    assert document["verdict"] == report.verdict.value
