"""What was recorded on real machines (tests/corpus/machines): two, one with an H100 and one with an H200, in
all its parts.
"""

import gzip
import json
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus/machines"
BUSY = CORPUS / "h100-busy.toml"
MACHINES = ("h100", "h200")


def recorded_names() -> list[str]:
    """The folders that have a machine's record: those two, and what `tools/accept_confirmation` added."""
    return sorted(path.parent.name for path in CORPUS.glob("*/machine.json.gz"))


def read_recorded(name: str) -> str:
    """The text of a file such as `h100/kernel-log-xid31.txt`, unpacked where it is packed."""
    path = CORPUS / name
    if path.exists():
        return path.read_text()
    with gzip.open(CORPUS / f"{name}.gz", "rt") as file:
        return file.read()


def recorded_document(name: str) -> dict[str, Any]:
    """The JSON of a file such as `h100/machine.json`."""
    document: dict[str, Any] = json.loads(read_recorded(name))
    return document
