"""The digest of a receipt's file, JSON or page, in the first line of its document.

It is the SHA-256 of the file with the digest's 64 digits as zeros. It finds an accident; a change on purpose
only a signature finds.
"""

import re
from dataclasses import dataclass
from hashlib import sha256

from gpudiag.errors import UsageError
from gpudiag.model.codec import dump_document, to_document
from gpudiag.model.receipt import DIGEST_DIGITS, NO_DIGEST, Receipt
from gpudiag.model.untrusted_text import MASK, mask_text, names_secret
from gpudiag.render.report_formats import finite

JSON, PAGE = "json", "page"
PAGE_HEAD = f'<!doctype html>\n<html lang="en" data-schema="{Receipt.SCHEMA}" data-digest="'
DOCUMENT_HEAD = '<script type="application/json" id="receipt">'
_DOCUMENT_END = "</script>"
_ZEROS = b"0" * DIGEST_DIGITS
_HEADS = {
    JSON: re.compile(rb'\{"schema": "(gpudiag\.receipt/[0-9]+)", "digest": "sha256:([0-9a-f]{64})"'),
    PAGE: re.compile(
        rb'<!doctype html>\n<html lang="en" data-schema="(gpudiag\.receipt/[0-9]+)"'
        rb' data-digest="sha256:([0-9a-f]{64})">'
    ),
}
# JSON may write them so, and a page needs them so: the document in the page is the file, byte for byte.
_OF_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(frozen=True, slots=True)
class Sealed:
    """A receipt's file: what it is, the digest that it states, that of its bytes, and the receipt's JSON."""

    kind: str  # json or page
    schema: str
    stated: str
    actual: str
    document: bytes

    @property
    def is_whole(self) -> bool:
        """Whether not a byte has changed since it was written."""
        return self.stated == self.actual


def render_sealed(receipt: Receipt) -> str:
    """The receipt's JSON with its digest, without secrets, ending with a line end."""
    text = dump_document(_masked(finite(to_document(receipt))))
    for character, escape in _OF_HTML.items():
        text = text.replace(character, escape)
    return seal(text + "\n")


def seal(text: str) -> str:
    """The text with its digest in the place of the first one of zeros."""
    digest = sha256(text.encode()).hexdigest()
    return text.replace(NO_DIGEST, f"sha256:{digest}", 1)


def read_sealed(data: bytes) -> Sealed:
    """What a file of a receipt holds.

    Raises:
        UsageError: it does not begin as one, or a page has no document in it.
    """
    for kind, head in _HEADS.items():
        found = head.match(data)
        if found:
            zeroed = data[: found.start(2)] + _ZEROS + data[found.end(2) :]
            document = data if kind == JSON else _document_of(data)
            return Sealed(kind, found[1].decode(), found[2].decode(), sha256(zeroed).hexdigest(), document)
    raise UsageError("it is no receipt, or its first line was changed")


def _document_of(page: bytes) -> bytes:
    """The receipt's JSON in its page."""
    _, head, rest = page.partition(DOCUMENT_HEAD.encode())
    document, end, _ = rest.partition(_DOCUMENT_END.encode())
    if not head or not end:
        raise UsageError("the page has no receipt in it")
    return document


def embed(document: str) -> str:
    """The receipt's JSON as it stands in its page."""
    return f"{DOCUMENT_HEAD}{document}{_DOCUMENT_END}"


def _masked(value: object, name: str = "") -> object:
    """The value without what looks like a secret, in any text of it."""
    if isinstance(value, str):
        return MASK if name and names_secret(name) else mask_text(value)
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if isinstance(value, dict):
        return {key: _masked(item, key) for key, item in value.items()}
    return value
