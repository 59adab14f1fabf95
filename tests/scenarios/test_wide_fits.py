"""`gpudiag list --wide` shows a GPU on one screen of a terminal."""

import pytest

from gpudiag.checks.runner import findings_worst_first
from gpudiag.render.style import Style
from gpudiag.render.wide_text import render_wide
from gpudiag.runs.instant import judge_snapshot
from gpudiag.simulate.loader import base_machines
from tests.scenarios.situations import look_at_machine
from tests.walking import walk

SCREEN_LINES = 24


@walk(base_machines())
def test_a_gpu_fits_a_screen(machine: str) -> None:
    snapshot = look_at_machine(machine)
    if not snapshot.devices:
        return
    findings = findings_worst_first(judge_snapshot(snapshot).results)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        quiet, whole = (
            render_wide(snapshot, findings, (), style) for style in (Style(), Style(verbose=True))
        )
    blocks = [block for block in quiet.split("\n\n") if block.lstrip().startswith(("GPU ", "SIMULATED"))]
    assert len(blocks) == len(snapshot.devices)
    healthy = [block for block in blocks if "  ok" in block]
    assert max((block.count("\n") + 1 for block in healthy), default=0) <= SCREEN_LINES
    assert len(whole.splitlines()) > len(quiet.splitlines())
