"""docs/detection.md: every fault has a row, every row keeps its promise, and the page says what runs say."""

import os

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.faults.table import FAULTS
from gpudiag.simulate.loader import base_machines
from gpudiag.simulate.nvml.library import build_library
from tools.write_detection import COMPARED, EXPECTED, INJECTED, PAGE, run_instant

WITHOUT_GPU = "none"  # nothing to train on, and nothing wrong (decision 0001)


@pytest.fixture(autouse=True)
def compiler():
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")


def test_every_fault_has_a_row():
    asked = {fault.partition(":")[0] for spec in EXPECTED for fault in spec.split("+")[1:]}
    assert asked == {kind.name for kind in FAULTS}


@pytest.mark.sliced
@pytest.mark.slow
@pytest.mark.parametrize("scenario", EXPECTED)
def test_a_fault_is_found_and_the_page_says_so(scenario):
    row = run_instant(scenario, EXPECTED[scenario])
    assert row.kept, row
    faults = PAGE.read_text().partition("## Machines held against")[0]
    (line,) = [line for line in faults.splitlines() if line.startswith(f"| `{scenario}` |")]
    said = {
        cell for cell in line.split(" | ")[-1].strip("| ").replace("`", "").split(", ") if cell != "nothing"
    }
    assert said == set(row.found)
    assert f"| {row.verdict.upper()} |" in line


def test_every_comparison_is_on_the_page_with_what_it_finds():
    text = PAGE.read_text()
    for scenario, (good, wanted) in COMPARED.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{scenario}` | `{good}` |")]
        found = line.split(" | ")[-1]
        assert all(f"`{code}`" in found for code in wanted), line


def test_every_base_machine_is_on_the_page():
    text = PAGE.read_text()
    verdicts = {name: "ERROR" if name == WITHOUT_GPU else "PASS" for name in base_machines()}
    lines = [f"| `{name}` | - | nothing | {verdict} | nothing |" for name, verdict in verdicts.items()]
    assert [line for line in lines if line not in text] == []


def test_every_injected_fault_is_on_the_page_with_what_it_is_found_by():
    text = PAGE.read_text()
    for words, (_, wanted) in INJECTED.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {words} |")]
        found = line.split(" | ")[-1]
        assert all(f"`{code}`" in found for code in wanted), line
        assert os.linesep not in line
