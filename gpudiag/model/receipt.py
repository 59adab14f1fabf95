"""A receipt: what a preflight looked at, measured, expected and skipped, on which parts, with a digest."""

from datetime import datetime
from typing import ClassVar

from gpudiag.model.codec import noun
from gpudiag.model.finding import MeasuredSpeed, Outcome
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.report import Report

DIGEST_DIGITS = 64  # of a SHA-256, hexadecimal
NO_DIGEST = f"sha256:{'0' * DIGEST_DIGITS}"


@noun
class Part:
    """One part that can be replaced, by the numbers that its maker gave it."""

    kind: str  # gpu, or network card
    name: str  # GPU 0 (1b:00.0), mlx5_0
    model: Reading[str]
    uuid: Reading[str] = NOT_ASKED
    serial: Reading[str] = NOT_ASKED
    board: Reading[str] = NOT_ASKED  # the part number of the board
    firmware: Reading[str] = NOT_ASKED  # VBIOS


@noun
class Version:
    """What of a piece of software was there, by its usual name."""

    name: str
    version: Reading[str]


@noun
class CheckDescription:
    """What a check of that name looks at, as the gpudiag that wrote the receipt has it."""

    check: str
    title: str
    level: str
    limits: tuple[str, ...]  # what is held against what, one of each kind of finding


@noun
class Receipt:
    """`gpudiag.receipt/1`: what a preflight looked at, measured, expected and skipped, with a digest of all.

    `digest` is `sha256:` and the SHA-256 of the file in which the receipt stands, with those 64 digits as
    zeros. `report` has the results of all checks, skipped ones with their reason, and what they saw; `speeds`
    every speed with what it was held against. `not_run` are the checks that this level, or `--only` and
    `--skip`, left out.
    """

    SCHEMA: ClassVar[str] = "gpudiag.receipt/1"

    digest: str
    issued_at: datetime
    level: str
    command: str
    parts: tuple[Part, ...]
    versions: tuple[Version, ...]
    checks: tuple[CheckDescription, ...]
    not_run: tuple[str, ...]
    speeds: tuple[MeasuredSpeed, ...]
    report: Report


# --- what was found of one that somebody else wrote


@noun
class Signature:
    """A signature beside a file: whether it fits, the key's type and fingerprint, and whose key that is."""

    fits: bool
    words: str  # ssh-keygen's
    key: str = ""
    signer: Reading[str] = NOT_ASKED


@noun
class ReceiptCheck:
    """`gpudiag.receipt_check/1`: whether a receipt is as it was written, and who signed it."""

    SCHEMA: ClassVar[str] = "gpudiag.receipt_check/1"

    outcome: Outcome
    path: str
    words: str
    whole: bool
    digest: Reading[str] = NOT_ASKED  # of the file's bytes
    signature: Reading[Signature] = NOT_ASKED
    host: Reading[str] = NOT_ASKED
    simulated: str | None = None
    issued_at: Reading[datetime] = NOT_ASKED
    level: Reading[str] = NOT_ASKED
    verdict: Reading[Outcome] = NOT_ASKED  # on the machine
