"""How wide text is: what COLUMNS says, within bounds."""

import pytest

from gpudiag.render.style import Column, columns, next_lines, render_table, wrapped

TEXT = "a rank that waits for another one " * 20


@pytest.mark.parametrize(
    ("said", "width"), [("120", 120), ("60", 60), ("7", 40), ("0", 80), ("", 80), ("x", 80)]
)
def test_the_width_follows_the_variable(monkeypatch: pytest.MonkeyPatch, said: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", said)
    assert columns() == width
    assert width - 10 < max(map(len, wrapped(TEXT))) <= width


def test_tables_and_commands_follow_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    headings = (Column("NAME"), Column("WHAT", gives_way=True))
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, render_table(headings, [("a", TEXT)]))) == 50
    assert len(next_lines("gpudiag list --sources all", "gpudiag preflight --level quick")) == 2
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, render_table(headings, [("a", TEXT)]))) == 100
    assert len(next_lines("gpudiag list --sources all", "gpudiag preflight --level quick")) == 1
