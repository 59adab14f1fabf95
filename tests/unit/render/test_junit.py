import re
from xml.etree import ElementTree

import pytest
from hypothesis import given

from gpudiag.model.finding import Outcome
from gpudiag.render.ci import render_junit
from tests.unit.render.reports import (
    ALL_SKIPPED,
    EMPTY,
    HEALTHY,
    REPORTS,
    SICK,
    hostile_reports,
    make_finding,
    make_report,
    make_result,
)

# The rules of junit-10.xsd (Jenkins' xUnit plugin, which GitLab and GitHub's readers agree with):
# which attributes an element must and may have, and which children.
COUNTS = {"tests", "failures", "errors"}
RULES = {
    "testsuites": (set(), {"name", "time", *COUNTS}, {"testsuite"}),
    "testsuite": (
        {"name", *COUNTS},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}
TIME = re.compile(r"\d+\.\d{3}")


def check_structure(element):
    required, optional, children = RULES[element.tag]
    assert required <= set(element.attrib) <= required | optional, element.tag
    assert {child.tag for child in element} <= children, element.tag
    assert "time" not in element.attrib or TIME.fullmatch(element.attrib["time"])
    for child in element:
        check_structure(child)


def parse(report):
    text = render_junit(report)
    root = ElementTree.fromstring(text.encode())  # bytes, as a reader of the file sees it
    check_structure(root)
    (suite,) = root
    return suite


def outcome(case):
    marks = {"failure": Outcome.FAIL, "error": Outcome.ERROR, "skipped": Outcome.SKIP}
    found = [marks[child.tag] for child in case if child.tag in marks]
    assert len(found) <= 1
    return found[0] if found else Outcome.PASS


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_counts_are_those_of_the_cases(report):
    suite = parse(report)
    outcomes = [outcome(case) for case in suite.iter("testcase")]
    assert suite.attrib["tests"] == str(len(outcomes))
    for name, counted in (("failures", Outcome.FAIL), ("errors", Outcome.ERROR), ("skipped", Outcome.SKIP)):
        assert suite.attrib[name] == str(outcomes.count(counted))


def test_each_check_is_a_case_with_its_outcome():
    found = {case.attrib["name"]: outcome(case) for case in parse(SICK).iter("testcase")}
    passing_warnings = {
        result.check: Outcome.PASS if result.outcome is Outcome.WARN else result.outcome
        for result in SICK.results
    }
    assert found == passing_warnings


def test_a_case_says_what_and_what_to_do():
    cases = {case.attrib["name"]: case for case in parse(SICK).iter("testcase")}
    failure = cases["gpu.lost"].find("failure")
    assert failure.attrib["type"] == "gpu.lost"
    assert "off the bus" in failure.attrib["message"]
    assert "power-cycle" in failure.text
    assert "(and 1 more)" in cases["xid.kernel_log"].find("failure").attrib["message"]
    assert cases["ecc.mode"].find("skipped").attrib["message"] == "this GPU has no ECC"
    assert "host.shm" in cases["host.shm"].find("system-out").text


def test_a_reader_who_sees_only_cases_sees_a_bad_verdict():
    assert [outcome(case) for case in parse(EMPTY).iter("testcase")] == [Outcome.ERROR]
    assert [outcome(case) for case in parse(ALL_SKIPPED).iter("testcase")] == [Outcome.ERROR, Outcome.SKIP]
    contradiction = make_report(make_result("gpu.lost"), verdict=Outcome.FAIL)
    assert [outcome(case) for case in parse(contradiction).iter("testcase")] == [Outcome.FAIL, Outcome.PASS]
    nothing = make_report(verdict=Outcome.PASS)
    assert [outcome(case) for case in parse(nothing).iter("testcase")] == [Outcome.ERROR]


def test_a_fault_that_two_checks_see_is_one_failure():
    report = make_report(
        make_result("gpu.lost", Outcome.FAIL, make_finding()),
        make_result("xid.kernel_log", Outcome.FAIL, reason="reported by gpu.lost", reported_by=("gpu.lost",)),
    )
    suite = parse(report)
    assert [outcome(case) for case in suite.iter("testcase")] == [Outcome.FAIL, Outcome.SKIP]
    (told,) = (case.find("skipped") for case in suite.iter("testcase") if case.find("skipped") is not None)
    assert told.attrib["message"] == "reported by gpu.lost"


def test_a_healthy_machine_has_only_its_checks():
    assert [case.attrib["name"] for case in parse(HEALTHY).iter("testcase")] == ["gpu.lost", "gpu.count"]


@given(report=hostile_reports)
def test_nothing_breaks_the_document(report):
    suite = parse(report)
    outcomes = [outcome(case) for case in suite.iter("testcase")]
    assert len(outcomes) - len(report.results) in (0, 1)
    if report.verdict in (Outcome.FAIL, Outcome.ERROR):
        assert Outcome.FAIL in outcomes or Outcome.ERROR in outcomes
