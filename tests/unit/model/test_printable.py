import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.untrusted_text import escape_controls, escape_steering, shorten_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python train.py", "python train.py"),
        ("naïve Ω 漢字", "naïve Ω 漢字"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\u202eb"),
        ("\udcff", "\\udcff"),
        ("", ""),
    ],
)
def test_what_steers_a_terminal_is_written_out(text, shown):
    assert escape_controls(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tof Grüße 语\n", "two\nlines\tof Grüße 语\n"),
        ("\x1b[2J\r\x9b\u202e\x7f", "\\u001b[2J\\u000d\\u009b\\u202e\\u007f"),
        ('{"name": "a\x9bb"}', '{"name": "a\\u009bb"}'),
        ("caf\udce9", "caf\\udce9"),
        ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
    ],
)
def test_text_of_several_lines_keeps_its_lines_and_steers_nothing(text, shown):
    assert escape_steering(text) == shown


def test_only_our_own_colours_stay():
    text = "\x1b[31mred\x1b[0m \x1b[35mtheirs\x1b[0m \x1b[1mbold"
    assert escape_steering(text, colours=True) == "\x1b[31mred\x1b[0m \\u001b[35mtheirs\x1b[0m \x1b[1mbold"


FAULT = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=2701, name=python3, channel 0x0000000a, intr 00000000. "
    "MMU Fault: ENGINE "
    "GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x8348_73e00000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
)


@given(st.text(), st.integers(4, 300))
def test_a_shortened_text_fits_and_says_that_it_was_cut(text: str, most: int) -> None:
    short = shorten_text(text, most)
    assert len(short) <= most
    assert short == text or short.endswith("..")


@pytest.mark.parametrize("most", range(40, len(FAULT) + 3))
def test_a_text_is_cut_between_words(most: int) -> None:
    words = shorten_text(FAULT, most).split()
    assert words[-1] == ".." or most >= len(FAULT)
    assert words[:-1] == FAULT.split()[: len(words) - 1]


def test_a_word_that_fills_the_room_is_cut_itself() -> None:
    assert shorten_text("a/" * 40, 20) == "a/" * 9 + ".."
    assert shorten_text(f"see {'a/' * 40}", 20) == "see " + "a/" * 7 + ".."
