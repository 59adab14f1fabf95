import pytest

from gpudiag.model.untrusted_text import escape_controls, escape_steering


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
