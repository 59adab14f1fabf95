"""Bytes of a source as text, by its byte-order mark, its declared encoding, or UTF-8."""

import codecs
import re

_DECLARED = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SNIFFED_BYTES = 8192


def decode_source(content: bytes) -> tuple[str | None, str, str | None]:
    """The text, its encoding, and a remark; where the bytes are not text, None and the reason as remark."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            try:
                return content.decode(encoding), encoding, None
            except UnicodeDecodeError:
                return None, encoding, f"its byte-order mark is that of {encoding}, but its bytes are not"
    if b"\0" in content[:_SNIFFED_BYTES]:
        return None, "", "it is binary, not text"
    declared = _declared_encoding(content)
    try:
        return content.decode(declared), declared, None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        if _is_mostly_binary(content):
            return None, declared, "it is binary, not text"
        return (
            content.decode("latin-1"),
            "latin-1",
            f"line {line} is not {declared} text; it was read byte by byte (latin-1)",
        )


def _declared_encoding(content: bytes) -> str:
    """What a comment in the first two lines declares; UTF-8 where none does, or where it is unknown."""
    for line in content.splitlines()[:2]:
        declared = _DECLARED.match(line)
        if declared:
            name = declared[1].decode("ascii")
            try:
                codec = codecs.lookup(name)
            except LookupError:
                return "utf-8"
            # Codecs such as hex or rot13 change bytes into bytes or text into text.
            return codec.name if getattr(codec, "_is_text_encoding", True) else "utf-8"
    return "utf-8"


def _is_mostly_binary(content: bytes) -> bool:
    head = content[:_SNIFFED_BYTES]
    controls = sum(byte < 32 and byte not in (9, 10, 12, 13, 27) for byte in head)
    return controls > len(head) // 20
