"""Any text on one line: what others wrote (a driver, a process name, a log) never breaks a format."""

import unicodedata

# Control, format (bidirectional overrides among them), surrogate, private and unassigned characters.
_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn")


def one_line(text: str, max_characters: int | None = None) -> str:
    """`text` with every run of white space as one space and without control characters, cut with `..`."""
    visible = "".join(character if _is_safe(character) else " " for character in text)
    line = " ".join(visible.split())
    if max_characters is None or len(line) <= max_characters:
        return line
    return line[: max(0, max_characters - 2)] + ".."


def one_ascii_line(text: str, max_characters: int | None = None) -> str:
    """The same in printable ASCII, anything else as `?`."""
    line = one_line(text).encode("ascii", "replace").decode("ascii")
    return one_line(line, max_characters)


def _is_safe(character: str) -> bool:
    return unicodedata.category(character) not in _UNSAFE
