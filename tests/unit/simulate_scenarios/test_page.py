"""docs/simulate.md names every machine and every fault, as they are written."""

from pathlib import Path

from gpudiag.simulate.faults.table import FAULTS
from gpudiag.simulate.loader import base_machines, load_scenario
from tests.unit.simulate_scenarios.machines import NOW

PAGE = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text()


def test_every_machine_is_on_the_page():
    assert [name for name in base_machines() if f"`{name}`" not in PAGE] == []


def test_every_fault_is_on_the_page_as_it_is_written():
    assert [kind.usage for kind in FAULTS if f"`{kind.usage}`" not in PAGE] == []


def test_the_pages_file_is_one(tmp_path: Path):
    lines = PAGE[PAGE.index('    base = "h100x8"') : PAGE.index("Further keys")].splitlines()
    file = tmp_path / "page.toml"
    file.write_text("\n".join(line.removeprefix("    ") for line in lines))
    scenario = load_scenario(str(file), now=NOW)
    assert scenario.hostname == "a1"
    assert scenario.gpus[2].faults[0].from_nth == 3
    assert scenario.faults[0].startswith("lost:3")
