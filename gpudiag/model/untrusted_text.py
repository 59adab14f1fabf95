"""Text from outside: terminal controls are written out, secrets masked, long text cut at words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

# C0 but tab and line feed, DEL and C1, marks that turn the direction of text, and half characters
# (undecodable bytes).
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_COLOURS_OF_OURS = r"\x1b\[(?:3[123]|[012])m"  # render/style.py
_STEERING = {False: re.compile(f"[{_CONTROLS}]"), True: re.compile(f"(?!{_COLOURS_OF_OURS})[{_CONTROLS}]")}

MASK = "***"

# A text with none of these needs no pattern: most command lines have none, and compiling takes time.
_MARKS = tuple(
    """
    token secret passw passphrase pwd key cred auth bearer psk :// signature sig= hf_ ghp_ gho_ ghs_
    github_pat_ glpat- sk- akia xox eyj nvapi- pypi- ya29. jwt pat=
    """.split()
)
_ENDINGS = (
    r"(?:token|secret|password|passwd|passphrase|passcode|pwd|pass|apikey|psk|jwt|bearer|credentials?|"
    r"authorization|(?:api|access|secret|private|auth|account|encryption|signing|license|shared|client|"
    r"service|wandb|session|master)[-_.]?key)"
)
# A name of several words, the last of which means a secret: `--hf-token`, `AWS_SECRET_ACCESS_KEY`, `apiKey`.
_NAME = (
    rf"(?:[\w.-]*[-_.])?{_ENDINGS}|[\w.-]*(?:password|passwd|passphrase|secret|apikey)|"
    rf"(?-i:[a-z]\w*(?:Token|Secret|Password|ApiKey|AccessKey|SecretKey))"
)
_SECRETS = {
    # scheme://user:password@host, scheme://token@host; the password may contain an unescaped slash or at sign
    "userinfo": (
        r"(?i)\b([a-z][a-z0-9+.-]*://)(?:([^\s:/@?#'\"]*):)?([^\s'\"<>]*?)"
        r"@(?=[^\s@/?#'\"]*(?:[/?#:,\s'\"]|$))"
    ),
    "header": r"(?i)\b(authorization\s*[:=]\s*(?:bearer|basic|token|digest)?|bearer)(\s*)([^\s'\",;]{6,})",
    "parameter": rf"(?i)([?&;](?:{_NAME}|sig|signature|pat|auth|key)=)[^\s&;#'\"]+",
    "assigned": (
        rf"(?i)(?<![\w.-])(-{{0,2}}[\"']?(?:{_NAME})[\"']?\s?[=:]\s?)(\"[^\"]*\"|'[^']*'|[^\s,;&'\"]+)"
    ),
    "flag": rf"(?i)(?<![\w-])(--?(?:{_NAME})\s+)(\"[^\"]*\"|'[^']*'|(?!-)\S+)",
    "shape": (
        r"\b(?:hf_[A-Za-z0-9]{16,}|gh[posru]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
        r"nvapi-[\w-]{20,}|sk-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{12,}|xox[abprs]-[\w-]{10,}|pypi-[\w-]{20,}|"
        r"ya29\.[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    ),
}


def escape_controls(text: str) -> str:
    r"""The text with every character that does not print written as its escape: `\x1b`, `\u202e`.

    Blanks stay; line ends do not: a name of two lines would look like two lines of ours.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def escape_steering(text: str, *, colours: bool = False) -> str:
    r"""The text, of any number of lines, with what would steer a terminal as `\u001b`; JSON stays the same.

    With `colours`, the colours of our own output stay.
    """
    return _STEERING[colours].sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shorten_text(text: str, most_characters: int) -> str:
    """The text in at most so many characters: cut between two words, with ` ..` where the rest was.

    A word that fills more than half of the room, such as a path, is cut itself. What decides a finding must
    stay whole: evidence in a document is never shortened, and a message by this.
    """
    if len(text) <= max(0, most_characters):
        return text
    head = text[: max(0, most_characters - 3)]
    words = head.rstrip() if text[len(head)].isspace() else (head.rsplit(None, 1) or [""])[0]
    if len(words) < len(head) // 2 or len(words.split()) < 2:
        return f"{text[: max(0, most_characters - 2)]}.."[: max(0, most_characters)]
    return f"{words} .."


def mask_text(text: str) -> str:
    """The text with what looks like a secret replaced by `***`."""
    lowered = text.lower()
    if not any(mark in lowered for mark in _MARKS):
        return text
    if "://" in text:
        text = _pattern("userinfo").sub(_mask_userinfo, text)
    text = _pattern("parameter").sub(rf"\g<1>{MASK}", text)
    text = _pattern("header").sub(rf"\g<1>\g<2>{MASK}", text)
    text = _pattern("assigned").sub(rf"\g<1>{MASK}", text)
    text = _pattern("flag").sub(rf"\g<1>{MASK}", text)
    return _pattern("shape").sub(MASK, text)


def mask_words(words: Sequence[str]) -> list[str]:
    """The words of a command line, each masked.

    A secret of several words behind its flag is one word here.
    """
    masked: list[str] = []
    is_secret = False
    for word in words:
        if is_secret and not word.startswith("-"):
            masked.append(MASK)
            is_secret = False
            continue
        masked.append(mask_text(word))
        is_secret = word.startswith("-") and "=" not in word and names_secret(word.lstrip("-"))
    return masked


def names_secret(name: str) -> bool:
    """Whether a variable, flag or parameter of that name holds a secret."""
    lowered = name.lower()
    return any(mark in lowered for mark in _MARKS) and _pattern("name").fullmatch(name) is not None


def _mask_userinfo(found: re.Match[str]) -> str:
    scheme, user, password = found.groups()
    if user is None:  # in a web address a token, elsewhere a user's name
        return f"{scheme}{MASK}@" if password and scheme.lower().startswith("http") else found[0]
    return f"{scheme}{user}:{MASK}@"


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """A compiled pattern, compiled when a text first needs it."""
    return re.compile(rf"(?i:{_NAME})" if name == "name" else _SECRETS[name])
