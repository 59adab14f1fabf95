"""Calls of pynvml that take more than a line: what `every_reading` asks a simulated machine for."""

from uuid import UUID

import pynvml as N

REASONS = {
    "gpu_idle": N.nvmlClocksEventReasonGpuIdle,
    "sw_power_cap": N.nvmlClocksEventReasonSwPowerCap,
    "hw_thermal_slowdown": N.nvmlClocksEventReasonHwThermalSlowdown,
}
COMPUTE_MODES = {
    N.NVML_COMPUTEMODE_DEFAULT: "default",
    N.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
}
RECOVERY_ACTIONS = {
    N.NVML_GPU_RECOVERY_ACTION_NONE: "none",
    N.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain_and_reset",
}
LOCATIONS = {
    "dram": N.NVML_MEMORY_LOCATION_DRAM,
    "sram": N.NVML_MEMORY_LOCATION_SRAM,
    "l2_cache": N.NVML_MEMORY_LOCATION_L2_CACHE,
}
GRAPHICS, SM, MEMORY, VIDEO = N.NVML_CLOCK_GRAPHICS, N.NVML_CLOCK_SM, N.NVML_CLOCK_MEM, N.NVML_CLOCK_VIDEO


def switch(number):
    return "enabled" if number else "disabled"


def field(handle, number, scope=0):
    [value] = N.nvmlDeviceGetFieldValues(handle, [(number, scope)])
    if value.nvmlReturn != N.NVML_SUCCESS:
        raise N.NVMLError(value.nvmlReturn)
    return {
        N.NVML_VALUE_TYPE_UNSIGNED_INT: value.value.uiVal,
        N.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: value.value.ullVal,
        N.NVML_VALUE_TYPE_SIGNED_INT: value.value.siVal,
    }[value.valueType]


def pci_info_ext(handle):
    info = N.nvmlPciInfoExt_v1_t()
    info.version = N.nvmlPciInfoExt_v1
    N.nvmlDeviceGetPciInfoExt(handle, N.byref(info))
    return info


def memory(handle):
    return N.nvmlDeviceGetMemoryInfo(handle, version=N.nvmlMemory_v2)


def ecc(error, counter, number):
    return (
        lambda h: N.nvmlDeviceGetTotalEccErrors(h, error, counter),
        lambda h: field(h, number),
    )


def clock(kind):
    return lambda h: N.nvmlDeviceGetClockInfo(h, kind), lambda h: N.nvmlDeviceGetClock(
        h, kind, N.NVML_CLOCK_ID_CURRENT
    )


def max_clock(kind):
    return (lambda h: N.nvmlDeviceGetMaxClockInfo(h, kind),)


def application_clock(kind):
    return (
        lambda h: N.nvmlDeviceGetApplicationsClock(h, kind),
        lambda h: N.nvmlDeviceGetClock(h, kind, N.NVML_CLOCK_ID_APP_CLOCK_TARGET),
    )


def reason_words(bits):
    return [word for word, bit in REASONS.items() if bits & bit]


def watts(milliwatts):
    return milliwatts / 1000


def location_counts(handle):
    return [
        {
            "location": word,
            **{
                f"{error}_{counter}": N.nvmlDeviceGetMemoryErrorCounter(handle, i, j, number)
                for i, error in enumerate(("corrected", "uncorrected"))
                for j, counter in enumerate(("volatile", "aggregate"))
            },
        }
        for word, number in LOCATIONS.items()
    ]


def histogram(handle):
    banks = N.nvmlDeviceGetRowRemapperHistogram(handle)
    return {f"{name}_banks": getattr(banks, name) for name in ("max", "high", "partial", "low", "none")}


def links(handle):
    counters = {
        "crc_flit_errors": N.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        "crc_data_errors": N.NVML_NVLINK_ERROR_DL_CRC_DATA,
        "replay_errors": N.NVML_NVLINK_ERROR_DL_REPLAY,
        "recovery_errors": N.NVML_NVLINK_ERROR_DL_RECOVERY,
    }
    return [
        {
            "link": link,
            "active": bool(N.nvmlDeviceGetNvLinkState(handle, link)),
            "remote_bus_id": N.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId.lower(),
            **{name: N.nvmlDeviceGetNvLinkErrorCounter(handle, link, n) for name, n in counters.items()},
        }
        for link in range(field(handle, N.NVML_FI_DEV_NVLINK_LINK_COUNT))
    ]


def processes(version):
    lists = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}

    def read(handle):
        return [
            {"pid": process.pid, "kind": kind, "memory_used_bytes": process.usedGpuMemory}
            for kind, word in lists.items()
            for process in getattr(N, f"nvmlDeviceGet{word}RunningProcesses_{version}")(handle)
        ]

    return read


def limits(place):
    return lambda h: watts(N.nvmlDeviceGetPowerManagementLimitConstraints(h)[place])


def node_of(handle):
    [bits] = N.nvmlDeviceGetMemoryAffinity(handle, 1, N.NVML_AFFINITY_SCOPE_NODE)
    return bits.bit_length() - 1


def sram_status(handle):
    status = N.c_nvmlEccSramErrorStatus_v1_t()
    N._nvmlCheckReturn(N._nvmlGetFunctionPointer("nvmlDeviceGetSramEccErrorStatus")(handle, N.byref(status)))
    return status


def throttle_seconds(handle):
    policies = ("power", "thermal", "sync_boost", "board_limit", "reliability")
    return {
        policy: N.nvmlDeviceGetViolationStatus(
            handle, getattr(N, f"NVML_PERF_POLICY_{policy.upper()}")
        ).violationTime
        / 1e9
        for policy in policies
    }


def throttle_fields(handle):
    policies = ("power", "thermal", "sync_boost", "board_limit", "reliability")
    return {
        policy: field(handle, getattr(N, f"NVML_FI_DEV_PERF_POLICY_{policy.upper()}")) / 1e9
        for policy in policies
    }


def pcie_errors(handle):
    return {
        "correctable": field(handle, N.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS),
        "nonfatal": field(handle, N.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR),
        "fatal": field(handle, N.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR),
        "bad_tlp": field(handle, N.NVML_FI_DEV_PCIE_COUNT_BAD_TLP),
        "bad_dllp": field(handle, N.NVML_FI_DEV_PCIE_COUNT_BAD_DLLP),
        "naks_received": field(handle, N.NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED),
        "naks_sent": field(handle, N.NVML_FI_DEV_PCIE_COUNT_NAKS_SENT),
    }


def fabric(handle):
    info = N.c_nvmlGpuFabricInfo_v3_t()
    N._nvmlCheckReturn(N.nvmlDeviceGetGpuFabricInfoV(handle, N.byref(info)))
    first = N.c_nvmlGpuFabricInfo_t()
    N._nvmlCheckReturn(N.nvmlDeviceGetGpuFabricInfo(handle, N.byref(first)))
    assert (first.state, first.cliqueId) == (info.state, info.cliqueId)
    faults = []
    if info.healthMask & 3 == N.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE:
        faults.append("degraded_bw")
    if (
        info.healthMask >> 8 & 15
        == N.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INSUFFICIENT_NVLINKS
    ):
        faults.append("insufficient_nvlinks")
    return {
        "state": {N.NVML_GPU_FABRIC_STATE_COMPLETED: "completed"}[info.state],
        "status": {N.NVML_SUCCESS: "success"}[info.status],
        "clique_id": info.cliqueId,
        "cluster_uuid": str(UUID(bytes=bytes(info.clusterUuid))),
        "health": {N.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY: "unhealthy"}[info.healthSummary],
        "faults": faults,
    }


def inforom_valid(handle):
    N.nvmlDeviceValidateInforom(handle)
    return True


def gpm(number, handle):
    """A metric of two samples, taken one after the other; traffic is in MiB per second."""
    samples = [N.nvmlGpmSampleGet(handle, N.nvmlGpmSampleAlloc()) for _ in range(2)]
    request = N.c_nvmlGpmMetricsGet_t(N.NVML_GPM_METRICS_GET_VERSION, 1, *samples)
    request.metrics[0].metricId = number
    metric = N.nvmlGpmMetricsGet(request).metrics[0]
    N._nvmlCheckReturn(metric.nvmlReturn)
    return metric.value * (2**20 if number >= N.NVML_GPM_METRIC_PCIE_TX_PER_SEC else 1)
