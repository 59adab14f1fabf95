"""Text from outside that a terminal may be shown: what would steer the terminal is written out instead."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

# C0 but tab and line feed, DEL and C1, marks that turn the direction of text, and half characters (undecodable bytes).
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_COLOURS_OF_OURS = r"\x1b\[(?:3[123]|[012])m"  # render/style.py
_PATTERNS = {False: f"[{_CONTROLS}]", True: f"(?!{_COLOURS_OF_OURS})[{_CONTROLS}]"}
_compiled: dict[bool, re.Pattern[str]] = {}


def escape_controls(text: str) -> str:
    r"""The text with every character that does not print written as its escape: `\x1b`, `\u202e`.

    A blank stays; a line's end does not: a name of two lines would be taken for two lines of ours.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def escape_steering(text: str, *, colours: bool = False) -> str:
    r"""The text of several lines with what would steer a terminal written as `\u001b`; JSON stays the same JSON.

    `colours` says that the text may hold those of our own output; they stay.
    """
    if colours not in _compiled:
        import re  # late: the quickest command pays for every import

        _compiled[colours] = re.compile(_PATTERNS[colours])
    return _compiled[colours].sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
