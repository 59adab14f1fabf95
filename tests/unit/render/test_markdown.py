import pytest
from hypothesis import given
from markdown_it import MarkdownIt

from gpudiag.render.ci import escape_markdown, render_markdown
from gpudiag.render.style import one_line
from tests.unit.render.reports import CPU_ONLY, EMPTY, REPORTS, SICK, SIMULATED, hostile_reports, texts

# As GitHub reads it: CommonMark with tables, and raw HTML let through.
READER = MarkdownIt("commonmark", {"html": True}).enable("table")


def tokens(report):
    return READER.parse(render_markdown(report))


def tables(report):
    """The cells of each table, as text."""
    found, row = [], None
    for token in tokens(report):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            row = []
            found[-1].append(row)
        elif token.type == "inline" and row is not None:
            row.append("".join(child.content for child in token.children if child.type == "text"))
        elif token.type == "table_close":
            row = None
    return found


def heading(report):
    ((opening, inline),) = [
        (token, following)
        for token, following in zip(tokens(report), tokens(report)[1:], strict=False)
        if token.type == "heading_open"
    ]
    assert opening.tag == "h2"
    return "".join(child.content for child in inline.children)


def test_the_heading_says_verdict_machine_and_owner():
    assert heading(SICK) == "gpudiag: FAIL on a1, hardware must act"


def test_findings_and_checks_are_tables():
    faults, checks = tables(SICK)
    assert [row[1] for row in faults[1:]] == ["gpu.lost", "xid.hardware", "xid.application", "host.shm"]
    assert [row[1] for row in checks[1:]] == [result.check for result in SICK.results]
    assert ["SKIP", "ecc.mode", "this GPU has no ECC"] in checks


@pytest.mark.parametrize(("report", "words"), [(SIMULATED, "SIMULATED h100x8"), (CPU_ONLY, "CPU ONLY")])
def test_what_is_no_real_gpu_is_said(report, words):
    text = "".join(child.content for token in tokens(report) if token.children for child in token.children)
    assert words in text


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_every_report_renders(report):
    assert heading(report).startswith(f"gpudiag: {report.verdict.value.upper()} on a1")
    assert len(tables(report)[-1]) == len(report.results) + 1


def test_an_empty_report_still_has_its_verdict():
    assert heading(EMPTY) == "gpudiag: ERROR on a1"


@given(text=texts)
def test_an_escaped_text_reads_as_it_was(text):
    inline = READER.parseInline(f"x {escape_markdown(text)} x")[0]
    assert {child.type for child in inline.children} <= {"text", "text_special"}
    assert " ".join(
        "".join(child.content for child in inline.children).split()
    ) == f"x {one_line(text)} x".replace("  ", " ")


@given(report=hostile_reports)
def test_nothing_breaks_the_tables(report):
    *faults, checks = tables(report)
    assert all(len(row) == 6 for table in faults for row in table)
    assert all(len(row) == 3 for row in checks)
    assert len(checks) == len(report.results) + 1
    html = {token.content.strip() for token in tokens(report) if token.type == "html_block"}
    assert all(block.startswith("<details><summary>All ") or block == "</details>" for block in html)
