"""How calls take their arguments: sizes, versions, handles, MIG devices, and what is between GPUs."""

import sys
from collections.abc import Callable

import pynvml
import pytest

from gpudiag.reference.nvml import exported_functions
from gpudiag.simulate.nvml.calls import SHAPES
from gpudiag.simulate.scenario import HostTree, Scenario
from gpudiag.simulate.session import Session
from tests.unit.simulate_library.machines import ask, make_gpu, make_machine, run

_SwitchOn = Callable[[Scenario], Session]


def test_every_shape_is_of_an_exported_function() -> None:
    assert set(SHAPES) <= set(exported_functions())


def test_handles_are_found_by_index_uuid_serial_and_bus_id(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine(make_gpu(0), make_gpu(1)))
    uuid = make_gpu(1).readings["uuid"]
    serial = make_gpu(1).readings["serial"]
    expression = f"""[N.nvmlDeviceGetIndex(handle) for handle in (
        N.nvmlDeviceGetHandleByIndex(1), N.nvmlDeviceGetHandleByUUID({uuid!r}),
        N.nvmlDeviceGetHandleBySerial({serial!r}), N.nvmlDeviceGetHandleByPciBusId("00000000:21:00.0"),
        N.nvmlDeviceGetHandleByPciBusId("0000:21:00.0"), N.nvmlDeviceGetHandleByPciBusId("21:00.0"))]"""
    assert ask(session, expression) == [1] * 6


def test_a_look_up_of_what_is_not_there_is_not_found(switch_on: _SwitchOn) -> None:
    expression = """[code(N.nvmlDeviceGetHandleByIndex, 1), code(N.nvmlDeviceGetHandleByUUID, "GPU-none"),
        code(N.nvmlDeviceGetHandleByPciBusId, "0000:ff:00.0")]"""
    assert ask(switch_on(make_machine()), expression) == [2, 6, 6]


def test_a_hidden_gpu_is_neither_counted_nor_found(switch_on: _SwitchOn) -> None:
    gpus = (make_gpu(0, visible=False), make_gpu(1, minor_number=1))
    uuid = gpus[0].readings["uuid"]
    expression = f"""[N.nvmlDeviceGetCount(), N.nvmlDeviceGetUUID(gpu(0)), N.nvmlDeviceGetMinorNumber(gpu(0)),
        code(N.nvmlDeviceGetHandleByUUID, {uuid!r})]"""
    assert ask(switch_on(make_machine(*gpus)), expression) == [1, gpus[1].readings["uuid"], 1, 6]


_RAW = """
import ctypes, struct
N = ctypes.CDLL("libnvidia-ml.so.1")
N.nvmlInit_v2()
handle = ctypes.c_void_p()
N.nvmlDeviceGetHandleByIndex(0, ctypes.byref(handle))
count, text = ctypes.c_uint(0), ctypes.create_string_buffer(8)
"""


def run_raw(session: Session, *lines: str) -> list[str]:
    """What a program prints that calls the library without pynvml."""
    done = run(session, sys.executable, "-c", "\n".join([_RAW, *lines]))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_list_is_asked_for_its_size_first(switch_on: _SwitchOn) -> None:
    lines = run_raw(
        switch_on(make_machine()),
        "call = N.nvmlDeviceGetComputeRunningProcesses_v3",
        "print(call(handle, ctypes.byref(count), None), count.value)",
        "room = (ctypes.c_ulonglong * 12)()",
        "count.value = 1",
        "print(call(handle, ctypes.byref(count), room), count.value, room[0])",
        "count.value = 4",
        "print(call(handle, ctypes.byref(count), room), count.value, room[0] & 0xffffffff)",
        "print(N.nvmlDeviceGetName(handle, text, 8), text.value)",
    )
    assert lines == ["7 2", "7 2 0", "0 2 4242", "7 b''"]


def test_an_empty_list_needs_no_room(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine(make_gpu(processes=[])))
    lines = run_raw(
        session,
        "print(N.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None), count.value)",
    )
    assert lines == ["0 0"]
    # A GPU that nobody has used since then: NVML's answer, not an empty list.
    assert ask(session, "code(N.nvmlDeviceGetProcessUtilization, gpu(), 0)") == 6


def test_every_version_of_the_process_list_has_its_own_size(switch_on: _SwitchOn) -> None:
    lines = run_raw(
        switch_on(make_machine()),
        "count.value = 8",
        "room = ctypes.create_string_buffer(400)",
        "N.nvmlDeviceGetComputeRunningProcesses(handle, ctypes.byref(count), room)",
        "print(struct.unpack_from('<I4xQ', room, 16))",
        "count.value = 8",
        "N.nvmlDeviceGetComputeRunningProcesses_v2(handle, ctypes.byref(count), room)",
        "print(struct.unpack_from('<I4xQII', room, 24))",
    )
    nothing = (1 << 64) - 1  # no permission to see the second process's memory
    assert lines == [str((4243, nothing)), str((4243, nothing, 0xFFFFFFFF, 0xFFFFFFFF))]


def test_process_details_come_through_a_struct(switch_on: _SwitchOn) -> None:
    expression = """(lambda found: [[p.pid, p.usedGpuMemory] for p in found])(
        N.nvmlDeviceGetRunningProcessDetailList(gpu(), N.nvmlProcessDetailList_v1, N.NVML_PROCESS_MODE_GRAPHICS))"""
    assert ask(switch_on(make_machine()), expression) == [[17, 1_048_576]]


def test_a_struct_of_another_version_is_refused(switch_on: _SwitchOn) -> None:
    lines = run_raw(
        switch_on(make_machine()),
        "for version in (40 | 2 << 24, 40 | 3 << 24, 0):",
        "    memory = (ctypes.c_ulonglong * 5)(version)",
        "    print(N.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)), memory[1])",
    )
    assert lines == ["0 85520809984", "25 0", "25 0"]


def test_what_is_no_handle_is_an_invalid_argument(switch_on: _SwitchOn) -> None:
    lines = run_raw(
        switch_on(make_machine()),
        "print(N.nvmlDeviceGetPowerUsage(None, ctypes.byref(count)))",
        "print(N.nvmlDeviceGetPowerUsage(ctypes.byref(count), ctypes.byref(count)))",
        "print(N.nvmlDeviceGetFieldValues(handle, 1, None))",
        "print(N.nvmlEventSetWait_v2(ctypes.byref(count), None, 0))",
    )
    assert lines == ["2", "2", "2", "2"]


def test_the_machine_cannot_be_changed_through_nvml(switch_on: _SwitchOn) -> None:
    expression = """[code(N.nvmlDeviceSetPersistenceMode, gpu(), 1), code(N.nvmlDeviceSetPowerManagementLimit, gpu(), 1),
        code(N.nvmlDeviceClearEccErrorCounts, gpu(), 0), code(N.nvmlDeviceResetGpuLockedClocks, gpu())]"""
    assert ask(switch_on(make_machine()), expression) == [4, 4, 4, 4]


def test_every_function_of_pynvml_can_be_looked_up(switch_on: _SwitchOn) -> None:
    lines = run_raw(
        switch_on(make_machine()),
        f"names = {exported_functions()!r}",
        "print(sum(not hasattr(N, name) for name in names), len(names))",
        # A function that nobody taught the library answers, too: of an S-class unit, of a type of vGPU.
        "print(N.nvmlUnitGetFanSpeedInfo(handle, ctypes.byref(count)), N.nvmlVgpuTypeGetClass(0, text, None))",
    )
    assert lines == [f"0 {len(exported_functions())}", "3 3"]


def test_error_texts_are_nvmls(switch_on: _SwitchOn) -> None:
    known = dict(pynvml.NVMLError._errcode_to_string)
    lines = run_raw(
        switch_on(make_machine()),
        "N.nvmlErrorString.restype = ctypes.c_char_p",
        f"print([N.nvmlErrorString(code).decode() for code in {[*known]}])",
    )
    assert lines == [str([*known.values()])]


MIG = [
    {
        "uuid": f"MIG-0000000{number}-aaaa-bbbb-cccc-dddddddddddd",
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "mig_index": index,
        "gpu_instance_id": 7 + number,
        "compute_instance_id": number % 2,
        "memory_total_bytes": 10_468_982_784,
        "memory_used_bytes": 13_631_488 * number,
        "memory_free_bytes": 10_468_982_784 - 13_631_488 * number,
    }
    for number, index in enumerate((0, 2, 5))
]


def mig_machine() -> Scenario:
    """A GPU with three MIG devices at indices 0, 2 and 5, one with a process."""
    process = {
        "pid": 4242,
        "kind": "compute",
        "memory_used_bytes": 1_048_576,
        "gpu_instance_id": 8,
        "compute_instance_id": 1,
    }
    changes = {"mig_mode": "enabled", "mig_instances": MIG, "processes": [process]}
    return make_machine(make_gpu(**changes))


def test_mig_devices_are_at_sparse_indices(switch_on: _SwitchOn) -> None:
    expression = """[[i, code(N.nvmlDeviceGetMigDeviceHandleByIndex, gpu(), i)]
        for i in range(N.nvmlDeviceGetMaxMigDeviceCount(gpu()))]"""
    codes = dict(ask(switch_on(mig_machine()), expression))
    assert codes == {index: 0 if index in (0, 2, 5) else 6 for index in range(7)}


def test_a_mig_device_answers_for_itself(switch_on: _SwitchOn) -> None:
    session = switch_on(mig_machine())
    expression = """(lambda mig: [
        N.nvmlDeviceGetUUID(mig), N.nvmlDeviceGetName(mig), N.nvmlDeviceGetGpuInstanceId(mig),
        N.nvmlDeviceGetComputeInstanceId(mig), N.nvmlDeviceGetMemoryInfo(mig).total,
        N.nvmlDeviceGetMemoryInfo(mig).used, N.nvmlDeviceGetAttributes(mig).memorySizeMB,
        N.nvmlDeviceIsMigDeviceHandle(mig).value, N.nvmlDeviceIsMigDeviceHandle(gpu()).value,
        N.nvmlDeviceGetUUID(N.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)),
        [p.pid for p in N.nvmlDeviceGetComputeRunningProcesses(mig)],
        code(N.nvmlDeviceGetUtilizationRates, mig), code(N.nvmlDeviceGetMarginTemperature, mig),
    ])(N.nvmlDeviceGetMigDeviceHandleByIndex(gpu(), 2))"""
    assert ask(session, expression) == [
        MIG[1]["uuid"],
        MIG[1]["name"],
        8,
        1,
        10_468_982_784,
        13_631_488,
        9984,
        1,
        0,
        make_gpu().readings["uuid"],
        [4242],
        3,
        3,
    ]
    by_uuid = f"N.nvmlDeviceGetGpuInstanceId(N.nvmlDeviceGetHandleByUUID({MIG[2]['uuid']!r}))"
    assert ask(session, by_uuid) == 9


def test_a_gpu_without_mig_has_no_mig_devices(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine(make_gpu(mig_mode=None, missing={"mig_mode": "not_supported"})))
    expression = """[code(N.nvmlDeviceGetMigMode, gpu()), N.nvmlDeviceGetMaxMigDeviceCount(gpu()),
        code(N.nvmlDeviceGetMigDeviceHandleByIndex, gpu(), 0)]"""
    assert ask(session, expression) == [3, 0, 3]


def pci_files(*chains: str) -> HostTree:
    """A host tree with a GPU at the end of each chain of PCI folders."""
    return HostTree(files={f"sys/devices/{chain}/device": "0x2330\n" for chain in chains})


@pytest.mark.parametrize(
    ("first", "second", "level"),
    [
        (
            "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0",
            "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0",
            10,
        ),
        (
            "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0",
            "pci0000:10/0000:10:01.0/0000:11:01.0/0000:13:00.0",
            10,
        ),
        (
            "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:14:00.0",
            "pci0000:10/0000:10:01.0/0000:11:01.0/0000:13:00.0/0000:15:00.0",
            20,
        ),
        ("pci0000:10/0000:10:01.0/0000:19:00.0", "pci0000:10/0000:10:02.0/0000:21:00.0", 30),
        ("pci0000:10/0000:10:01.0/0000:19:00.0", "pci0000:80/0000:80:02.0/0000:21:00.0", 40),
    ],
    ids=["one switch", "one switch, two ports", "two switches", "host bridge", "node"],
)
def test_the_common_ancestor_is_where_sysfs_has_it(
    switch_on: _SwitchOn, first: str, second: str, level: int
) -> None:
    gpus = [
        make_gpu(index, bus_id=f"0000{chain.rpartition('/')[2]}")
        for index, chain in enumerate((first, second))
    ]
    session = switch_on(make_machine(*gpus, host=pci_files(first, second)))
    expression = f"""[N.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(1)),
        [N.nvmlDeviceGetIndex(h) for h in N.nvmlDeviceGetTopologyNearestGpus(gpu(0), {level})]]"""
    assert ask(session, expression) == [level, [1]]


def test_gpus_of_different_nodes_have_the_system_between_them(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine(make_gpu(0, numa_node=0), make_gpu(1, numa_node=1)))
    assert ask(session, "N.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(1))") == 50


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ({}, [0, 0, 0]),  # the links of both lead to the same switches
        ({"nvlinks": None, "missing": {"nvlinks": "not_supported"}}, [5, 5, 5]),
    ],
    ids=["by NVLink", "without"],
)
def test_peer_access_follows_from_nvlink(
    switch_on: _SwitchOn, changes: dict[str, object], statuses: list[int]
) -> None:
    session = switch_on(make_machine(make_gpu(0), make_gpu(1, **changes)))
    expression = "[N.nvmlDeviceGetP2PStatus(gpu(0), gpu(1), index) for index in (0, 1, 2)]"
    assert ask(session, expression) == statuses


@pytest.mark.parametrize(
    ("changes", "mebibytes"),
    [
        ({"architecture": "hopper"}, 131072),
        ({"architecture": "ampere", "memory_total_bytes": 40 * 1024**3}, 65536),
        ({"architecture": "turing"}, 256),
        ({"architecture": "ada", "name": "NVIDIA GeForce RTX 4090"}, None),
    ],
    ids=lambda value: str(value.get("architecture")) if isinstance(value, dict) else None,
)
def test_the_bar1_window_is_as_large_as_real_ones(
    switch_on: _SwitchOn, changes: dict[str, object], mebibytes: int | None
) -> None:
    session = switch_on(make_machine(make_gpu(**changes)))
    if mebibytes is None:
        assert ask(session, "code(N.nvmlDeviceGetBAR1MemoryInfo, gpu())") == 3
    else:
        assert ask(session, "N.nvmlDeviceGetBAR1MemoryInfo(gpu()).bar1Total") == mebibytes * 1024**2


def test_peer_access_is_as_in_the_reading(switch_on: _SwitchOn) -> None:
    peer = {
        "bus_id": "00000000:21:00.0",
        "path": "pcie_switch",
        "read": "disabled",
        "nvlink": "not_supported",
    }
    session = switch_on(make_machine(make_gpu(0, peers=[peer]), make_gpu(1)))
    expression = """[N.nvmlDeviceGetP2PStatus(gpu(0), gpu(1), 0), N.nvmlDeviceGetP2PStatus(gpu(0), gpu(1), 2),
        N.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(1))]"""
    assert ask(session, expression) == [4, 5, 10]


def test_processors_near_a_gpu_come_from_sysfs(switch_on: _SwitchOn) -> None:
    files = {"sys/devices/pci0000:19/0000:19:00.0/local_cpulist": "0-2,66\n"}
    session = switch_on(make_machine(host=HostTree(files=files)))
    assert ask(session, "[int(word) for word in N.nvmlDeviceGetCpuAffinity(gpu(), 2)]") == [0b111, 0b100]


def test_pci_ids_and_the_remote_end_of_a_link(switch_on: _SwitchOn) -> None:
    gpu = make_gpu(pci_device_id="2330", pci_subsystem_id="16c110de")
    expression = """(lambda info: [hex(info.pciDeviceId), hex(info.pciSubSystemId), info.bus,
        N.nvmlDeviceGetNvLinkRemoteDeviceType(gpu(), 0)])(N.nvmlDeviceGetPciInfo(gpu()))"""
    expected = ["0x233010de", "0x16c110de", 0x19, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH]
    assert ask(switch_on(make_machine(gpu)), expression) == expected
