"""tools/compare_capture.py distinguishes a difference of structure from one of value."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.unit.simulate_scenarios.machines import machine

TOOL = Path(__file__).parents[3] / "tools" / "compare_capture.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_capture", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def capture(tool: ModuleType, folder: Path, **texts: str) -> Path:
    """A capture with the values of the T4, but for `texts` (path with __ for /)."""
    readings = machine("t4x1").gpus[0].readings
    root = ElementTree.Element("nvidia_smi_log")
    gpu = ElementTree.SubElement(root, "gpu")
    for field in tool.FIELDS:
        place(gpu, field.path, text_of(readings.get(field.reading), field, tool))
    for path, text in texts.items():
        place(gpu, path.replace("__", "/"), text)
    file = folder / "capture.xml"
    ElementTree.ElementTree(root).write(file)
    return file


def place(gpu: ElementTree.Element, path: str, text: str) -> None:
    for name in path.split("/"):
        found = gpu.find(name)
        gpu = ElementTree.SubElement(gpu, name) if found is None else found
    gpu.text = text


def text_of(value, field, tool: ModuleType) -> str:
    if value is None:
        return "N/A"
    if field.parse is tool.parse_mib:
        return f"{-(-value // 2**20)} MiB"
    if field.reading == "pstate":
        return f"P{value}"
    if field.parse is tool.parse_action:
        return "None"
    if field.parse is tool.parse_yes:
        return "Yes" if value else "No"
    return str(value)


def test_the_same_is_the_same(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert tool.main([str(capture(tool, tmp_path))]) == 0
    printed = capsys.readouterr().out
    assert "t4x1" in printed
    assert "differs" not in printed
    assert "only" not in printed


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"fan_speed": "30 %"}, "only_in_capture fan_speed_percent"),
        ({"clocks__sm_clock": "N/A"}, "only_here       sm_clock_mhz"),
        ({"remapped_rows__remapped_row_corr": "0"}, "only_in_capture row_remap_correctable"),
    ],
)
def test_a_value_on_one_side_only_is_a_difference_of_structure(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], texts: dict[str, str], words: str
):
    assert tool.main([str(capture(tool, tmp_path, **texts))]) == 1
    assert words in capsys.readouterr().out


def test_two_values_are_no_difference_of_structure(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = capture(tool, tmp_path, vbios_version="90.04.00.00.00", temperature__gpu_temp="41 C", uuid="GPU-1")
    assert tool.main([str(file)]) == 0
    printed = capsys.readouterr().out
    assert "differs         vbios_version" in printed
    assert "temperature_celsius:" not in printed, "live readings are only counted"


def test_a_size_is_rounded_up_by_nvidia_smi(tool: ModuleType):
    field = next(field for field in tool.FIELDS if field.reading == "memory_reserved_bytes")
    assert tool._equal(469368832, tool.parse_mib("448 MiB"), field)
    assert not tool._equal(469368832, tool.parse_mib("449 MiB"), field)


def test_misuse_ends_with_2(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = tmp_path / "other.xml"
    other.write_text("<html/>")
    for arguments in (
        [str(other)],
        [str(tmp_path / "no.xml")],
        [str(capture(tool, tmp_path)), "--machine", "h100x9"],
    ):
        assert tool.main(arguments) == 2
    unknown = capture(tool, tmp_path, product_name="NVIDIA H900")
    assert tool.main([str(unknown)]) == 2
    assert "H900" in capsys.readouterr().err
