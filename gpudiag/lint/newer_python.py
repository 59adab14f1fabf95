"""Syntax of Python 3.12 and later written so that 3.11 reads it, every statement on the line on which it was.

The linter parses with the Python that it runs under. What is replaced here carries no rule's subject: type
parameters, type statements, the fields of f-strings that reuse their own quotes.
"""

import re

_TYPE_STATEMENT = re.compile(r"^([ \t]*)type([ \t]+)(\w+)(?=[ \t]*[=\[])", re.MULTILINE)
_DEFINITION = re.compile(r"\b(?:def|class)[ \t]+\w+[ \t]*(?=\[)")
_EXCEPT_LIST = re.compile(r"(\bexcept\*?[ \t]+)([\w.]+(?:[ \t]*,[ \t]*[\w.]+)+)([ \t]*:)")
_STRING = re.compile(r"#[^\n]*|(?<![\w])([fFrRbBuUtT]{0,3})('''|\"\"\"|'|\")")


def older_syntax(text: str) -> str:
    """The text in the syntax of Python 3.11, as far as it has an equivalent, line by line."""
    text = _plain_strings(text)
    text = _TYPE_STATEMENT.sub(lambda found: f"{found[1]}{found[3]}{' ' * (4 + len(found[2]))}", text)
    text = _without_parameters(text)
    return _EXCEPT_LIST.sub(r"\1(\2)\3", text)


def _without_parameters(text: str) -> str:
    """The text without the type parameters of functions, classes and type statements."""
    places = [found.end() for found in _DEFINITION.finditer(text)]
    places += [found.end() for found in re.finditer(r"^[ \t]*\w+[ \t]{5,}(?=\[)", text, re.MULTILINE)]
    pieces = list(text)
    for place in places:
        end = _closing(text, place)
        pieces[place:end] = [character if character == "\n" else " " for character in pieces[place:end]]
    return "".join(pieces)


def _closing(text: str, place: int) -> int:
    """Where the bracket that opens at `place` has closed."""
    depth = 0
    for position in range(place, len(text)):
        depth += (text[position] in "[({") - (text[position] in "])}")
        if depth == 0:
            return position + 1
    return place


def _plain_strings(text: str) -> str:
    """The text with f-strings that only Python 3.12 reads as plain strings of the same size."""
    pieces, place = [], 0
    while found := _STRING.search(text, place):
        if found[0].startswith("#"):
            pieces.append(text[place : found.end()])
            place = found.end()
            continue
        formatted = set(found[1].lower()) & {"f", "t"}
        end, newer = _end_of_string(text, found.end(), found[2], bool(formatted), "r" in found[1].lower())
        pieces.append(text[place : found.start()])
        literal = text[found.start() : end]
        pieces.append(_masked(literal) if formatted and (newer or "t" in formatted) else literal)
        place = max(end, found.end())
    return "".join(pieces) + text[place:]


def _end_of_string(text: str, place: int, quote: str, formatted: bool, raw: bool) -> tuple[int, bool]:
    """Where the string ends, and whether a field in it uses what Python 3.11 does not allow there."""
    newer = False
    while place < len(text):
        if text[place] == "\\" and not (raw and formatted):
            place += 2
        elif text.startswith(quote, place):
            return place + len(quote), newer
        elif formatted and text.startswith(("{{", "}}"), place):
            place += 2
        elif formatted and text[place] == "{":
            end = _end_of_field(text, place, quote)
            inside = text[place:end]
            newer = newer or quote[0] in inside or "\\" in inside or "#" in inside
            newer = newer or (len(quote) == 1 and "\n" in inside)
            place = end
        elif text[place] == "\n" and len(quote) == 1:
            return place, newer
        else:
            place += 1
    return place, newer


def _end_of_field(text: str, place: int, quote: str) -> int:
    """Where the field of an f-string that opens at `place` closes; strings inside it may hold anything."""
    depth = 0
    while place < len(text):
        character = text[place]
        if character in "'\"":
            found = _STRING.match(text, place)
            inner = found[2] if found else character
            place = _end_of_string(text, place + len(inner), inner, False, False)[0]
            continue
        depth += (character in "{[(") - (character in "}])")
        place += 1
        if depth == 0:
            break
    return place


def _masked(literal: str) -> str:
    first = literal.split("\n", 1)[0]
    rest = literal[len(first) :]
    shown = '"' + "x" * max(len(first) - 2, 0) + '"'
    return shown + "".join(character if character == "\n" else " " for character in rest)
