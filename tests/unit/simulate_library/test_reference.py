"""The reference data of NVML is that of the installed pynvml; the tool notices where it is not."""

import ctypes
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pynvml
import pytest

from gpudiag.reference.nvml import constant, exported_functions, pack_struct, struct_size, struct_version

_TOOL = Path(__file__).parents[3] / "tools" / "generate_nvml_reference.py"


@pytest.fixture
def tool() -> ModuleType:
    specification = importlib.util.spec_from_file_location("generate_nvml_reference", _TOOL)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_installed_pynvml_asks_for_nothing_that_the_data_lacks(tool: ModuleType) -> None:
    assert tool.find_gaps() == [], "run tools/generate_nvml_reference.py"


def test_a_missing_function_constant_or_struct_is_noticed(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    symbols, structs = json.loads(tool.SYMBOLS_FILE.read_text()), json.loads(tool.STRUCTS_FILE.read_text())
    symbols["functions"].remove("nvmlDeviceGetName")
    symbols["constants"]["NVML_FI_DEV_MEMORY_TEMP"] = 1
    structs["structs"]["c_nvmlMemory_v2_t"]["fields"].pop()
    for name, content in (("SYMBOLS_FILE", symbols), ("STRUCTS_FILE", structs)):
        monkeypatch.setattr(tool, name, tmp_path / name)
        (tmp_path / name).write_text(json.dumps(content))
    assert tool.find_gaps() == [
        "function nvmlDeviceGetName",
        "constant NVML_FI_DEV_MEMORY_TEMP: 1 became 82",
        "struct c_nvmlMemory_v2_t",
    ]
    assert tool.main(["--check"]) == 1


def test_names_that_older_programs_ask_for_are_exported() -> None:
    older = {
        "nvmlInit",
        "nvmlInit_v2",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlEventSetWait",
    }
    assert older <= set(exported_functions())


def test_a_packed_struct_is_what_ctypes_makes_of_it() -> None:
    packed = pack_struct("nvmlPciInfo_t", busIdLegacy="0000:5D:00.0", bus=0x5D, pciDeviceId=0x233010DE)
    info = pynvml.nvmlPciInfo_t.from_buffer_copy(packed)
    assert (info.busIdLegacy, info.bus, info.pciDeviceId, info.domain) == (
        "0000:5D:00.0",
        0x5D,
        0x233010DE,
        0,
    )
    assert len(packed) == ctypes.sizeof(pynvml.nvmlPciInfo_t) == struct_size("nvmlPciInfo_t")


def test_versions_are_those_of_pynvml() -> None:
    assert struct_version("c_nvmlMemory_v2_t", 2) == pynvml.nvmlMemory_v2
    assert struct_version("c_nvmlGpuFabricInfo_v3_t", 3) == pynvml.nvmlGpuFabricInfo_v3
    assert constant("NVML_ERROR_GPU_IS_LOST") == pynvml.NVML_ERROR_GPU_IS_LOST


@pytest.mark.parametrize("member", ["speed", "Version"])
def test_a_member_that_a_struct_has_not_is_refused(member: str) -> None:
    with pytest.raises(KeyError):
        pack_struct("c_nvmlMemory_v2_t", **{member: 1})
