"""A CUDA context that a fork of gpudiag was refused says nothing about the machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.runs.test_placement import make_machine_with

RECORDED = Path(__file__).parents[2] / "corpus" / "forks" / "h100-torch-2.11.txt"
WORDS = sorted(
    {line.partition("POISONED ")[2] for line in RECORDED.read_text().splitlines() if "POISONED" in line}
)
CHECK = next(check for check in BUILTIN if check.name == "cuda.context")


@pytest.mark.parametrize("words", WORDS)
def test_what_an_h100_said_in_a_fork_is_no_fault_and_no_pass(words: str) -> None:
    snapshot = make_machine_with(1)
    torch: Any = snapshot.torch
    refused = replace(torch, context_starts=Missing(MissingReason.ERROR, f"RuntimeError: {words}"))
    (result,) = run_checks(Context(replace(snapshot, torch=refused)), (CHECK,))
    assert (result.outcome, result.findings) == (Outcome.ERROR, ())
