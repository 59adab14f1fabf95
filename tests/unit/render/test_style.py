"""How wide text is: what COLUMNS says, within bounds."""

import fcntl
import io
import os
import pty
import struct
import termios
import unicodedata

import pytest

from gpudiag.render.style import (
    Column,
    cells_of,
    columns,
    next_lines,
    one_line,
    render_table,
    safe_lines,
    shortened,
    wrapped,
)

TEXT = "a rank that waits for another one " * 20


@pytest.mark.parametrize(
    ("said", "width"), [("120", 120), ("60", 60), ("7", 40), ("0", 80), ("", 80), ("x", 80)]
)
def test_the_width_follows_the_variable(monkeypatch: pytest.MonkeyPatch, said: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", said)
    assert columns() == width
    prose = min(width, 100)
    assert prose - 10 < max(map(len, wrapped(TEXT))) <= prose


def test_on_a_terminal_text_is_as_wide_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
        with open(theirs, "w", closefd=False) as terminal:
            monkeypatch.setattr("sys.stdout", terminal)
            assert columns() == 132
            monkeypatch.setenv("COLUMNS", "90")
            assert columns() == 90
    finally:
        os.close(ours)
        os.close(theirs)


def test_without_a_terminal_text_is_80_columns_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for stream in (io.StringIO(), None):
        monkeypatch.setattr("sys.stdout", stream)
        assert columns() == 80


def test_tables_and_commands_follow_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    headings = (Column("NAME"), Column("WHAT", gives_way=True))
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, render_table(headings, [("a", TEXT)]))) == 50
    assert len(next_lines("gpudiag list --sources all", "gpudiag preflight --level quick")) == 2
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, render_table(headings, [("a", TEXT)]))) == 100
    assert len(next_lines("gpudiag list --sources all", "gpudiag preflight --level quick")) == 1


def test_a_command_is_not_broken_where_a_line_can_hold_it() -> None:
    short, long = "`echo 'GPU 0 was reset' | tee FILE`", "`" + "word " * 9 + "end`"
    for before in range(40):
        lines = wrapped(f"{'x' * before} then ({short}), and {long}.", indent="    ", first="Do: ", width=44)
        assert sum(short in line for line in lines) == 1
        assert max(map(len, lines)) <= 44


def test_wide_characters_and_marks_shift_no_column() -> None:
    names = ("plain", "\u8a13\u7df4.py", "e\u0301tude", "\uff46\uff55\uff4c\uff4c", "")
    rows = render_table((Column("NAME"), Column("PID", right=True)), [(name, "7") for name in names])
    assert {cells_of(row) for row in rows} == {len(rows[0])}
    assert [cells_of(name) for name in names] == [5, 7, 5, 8, 0]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("\u4e16\u84ee", 4),  # a user of htop-dev/htop/issues/421
        ("\ub098\uc724\uc120", 6),  # a folder of borgbackup/borg/issues/1624
        (unicodedata.normalize("NFD", "\ub098\uc724\uc120"), 6),  # the same from a Mac
        ("\u8fdc\u7a0b.log", 8),  # szad670401/HyperLPR/issues/41
        ("caf\u00e9", 4),
        (unicodedata.normalize("NFD", "caf\u00e9"), 4),
        ("\uff8a\uff9d", 2),  # half-width Katakana
        ("\u0e44\u0e17\u0e22", 3),
        ("a\u200bb\ufeffc", 3),
    ],
)
def test_names_of_public_reports_take_what_a_terminal_gives_them(name: str, cells: int) -> None:
    assert cells_of(name) == cells
    rows = render_table((Column("USER"), Column("PID", right=True)), [(name, "7"), ("alice", "12345")])
    assert {cells_of(row) for row in rows} == {cells_of(rows[0])}


def test_a_cut_counts_what_a_terminal_shows() -> None:
    assert shortened("\u8a13\u7df4\u8a13\u7df4", 8) == "\u8a13\u7df4\u8a13\u7df4"
    assert shortened("\u8a13\u7df4\u8a13\u7df4", 7) == "\u8a13\u7df4.."
    assert shortened("abcdefgh", 6) == "abcd.."


def test_text_that_has_no_room_beside_its_heading_stands_below_it() -> None:
    head = "nvml       not installed    -   7 ms  "
    assert wrapped("no driver is here", first=head, indent=" " * len(head), width=40) == [
        "nvml       not installed    -   7 ms",
        "    no driver is here",
    ]
    assert wrapped("ok", first=head, indent=" " * len(head), width=40) == [f"{head}ok"]
    beside = wrapped("word " * 30, first=head, indent=" " * len(head), width=60)
    assert len(beside) > 1
    assert beside[0].startswith(f"{head}word")


def test_a_byte_that_is_no_text_is_shown_as_its_escape() -> None:
    assert one_line("l\udcf6g\x1b.txt") == r"l\udcf6g .txt"
    assert safe_lines("l\udcf6g\n") == "l\\udcf6g\n"
