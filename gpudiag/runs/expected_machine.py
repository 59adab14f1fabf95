"""`--expect FILE`: the machine's known good state, from a report or a snapshot that was kept."""

import json
from pathlib import Path

from gpudiag.errors import UsageError
from gpudiag.model.codec import from_document
from gpudiag.model.device import Snapshot
from gpudiag.model.report import Report

MAX_BYTES = 64 * 1024**2


def read_expected_machine(path: Path) -> Snapshot:
    """The snapshot in a file that `gpudiag preflight --json` or `gpudiag list --json` wrote.

    Raises:
        UsageError: the file cannot be read, or is neither.
    """
    hint = "make one on a good machine: gpudiag preflight --report json=FILE"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--expect: cannot read {path}: {error.strerror or error}", hint=hint) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"--expect: {path} is too large for a report", hint=hint)
    try:
        noun = from_document(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--expect: {path} is not JSON, or cut short", hint=hint) from error
    except UsageError as error:
        raise UsageError(f"--expect: {path}: {error.message}", hint=hint) from error
    if isinstance(noun, Report):
        return noun.snapshot
    if isinstance(noun, Snapshot):
        return noun
    raise UsageError(f"--expect: {path} is neither a report nor a snapshot", hint=hint)
