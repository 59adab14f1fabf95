"""Every kind of fault, on the first machine of its trials; tools/write_kinds.py tries all of them.

The first trial of each kind is tried at each commit. Its others differ in what is planted and not in how it is
found, and one in ten of them is.
"""

import pytest

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.errors import UsageError
from gpudiag.model.finding import Outcome
from gpudiag.simulate.nvml.library import build_library
from tests.scenarios.kinds import all_kinds
from tests.scenarios.kinds.trial import Kind, Trial
from tools.write_detection import PAGE
from tools.write_kinds import HEADING

MACHINES_OF_A_KIND = 4
# Codes in spite of which jobs may start: those that say so, and all that are no FAIL.
SPARED = {kind.code for kind in finding_kinds() if kind.spares_jobs or kind.outcome is not Outcome.FAIL}


@pytest.fixture(autouse=True)
def compiler():
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")


def first_machine(kind: Kind) -> list[Trial]:
    return [trial for trial in kind.trials if trial.machine == kind.trials[0].machine]


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.name)
def test_a_kind_is_tried_on_several_machines_and_has_near_misses(kind: Kind):
    assert len({trial.machine for trial in kind.trials}) >= MACHINES_OF_A_KIND
    assert any(trial.near_miss for trial in kind.trials)
    assert any(not trial.near_miss for trial in kind.trials)


@pytest.mark.sliced
@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(trial, id=f"{kind.name}: {trial.words}", marks=() if place else pytest.mark.each_run)
        for kind in all_kinds()
        for place, trial in enumerate(first_machine(kind))
    ],
)
def test_what_is_planted_is_found_and_nothing_else(trial: Trial):
    tried = trial.run()
    assert set(tried.row.found) == set(trial.finds), tried.row
    spared = {name.partition(" ")[0] for name in tried.row.found} <= SPARED
    assert tried.row.keeps_jobs_off == (tried.row.verdict == "fail" and not spared), tried.row


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.name)
def test_a_kind_has_its_row_on_the_page(kind: Kind):
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    assert f"\n| {kind.name} | " in section
