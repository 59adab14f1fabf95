"""Readings that mean trouble by themselves: heat and size of memory, what the driver asks for, words it has
alone.
"""

from tests.scenarios.kinds.trial import Kind, Trial

_SEVERAL = ("h100x8", "a100x8", "b200x8", "h200x8", "rtx4090x2")
_HBM = {"h100x8": 95, "a100x8": 95, "h200x8": 105, "b200x8": 105}
_MIB_OF = {"h100x8": 81559, "a100x8": 40960, "b200x8": 183359, "rtx4090x2": 24564}


def _gpu(lines: str, index: int = 1) -> str:
    return f"[gpus.{index}]\n{lines}\n"


def _code(call: str, code: int, index: int = 1) -> str:
    return _gpu(f'calls = [{{ call = "{call}", code = {code} }}]', index)


_HOT = tuple(
    trial
    for machine, highest in _HBM.items()
    for trial in (
        Trial(
            f"memory at {highest + 3} C",
            machine,
            ("temperature.memory_too_hot 1",),
            differs=_gpu(f"memory_temperature_celsius = {highest + 3}"),
        ),
        Trial(f"memory at {highest} C", machine, differs=_gpu(f"memory_temperature_celsius = {highest}")),
    )
)
_SMALL = (
    *(
        Trial(
            "one GPU has an eighth less",
            machine,
            ("memory.too_small 1",),
            differs=_gpu(f"memory_total_bytes = {mib * 7 // 8 * 1024**2}"),
        )
        for machine, mib in _MIB_OF.items()
    ),
    *(
        Trial(
            "a percent less on all",
            machine,
            differs=f"[gpu]\nmemory_total_bytes = {mib * 99 // 100 * 1024**2}\n",
        )
        for machine, mib in _MIB_OF.items()
    ),
    Trial(
        "the only GPU has half",
        "t4x1",
        ("memory.too_small 0",),
        differs=_gpu(f"memory_total_bytes = {7680 * 1024**2}", 0),
    ),
    Trial(
        "an older driver takes more for ECC",
        "t4x1",
        differs=_gpu(f"memory_total_bytes = {15109 * 1024**2}", 0),
    ),
)
_RECOVERY = tuple(
    trial
    for machine in ("h100x8", "a100x8", "b200x8", "h200x8")
    for trial in (
        Trial(
            "an action that nobody knows",
            machine,
            ("gpu.recovery_needed 1",),
            differs=_gpu('recovery_action = "unknown_9"'),
        ),
        Trial("no action", machine, differs=_gpu('recovery_action = "none"')),
        Trial("NVML 16 for all", machine, ("gpu.recovery_needed 1",), differs=_code("*", 16)),
        Trial(
            "NVML 16 for power alone",
            machine,
            ("gpu.recovery_needed 1",),
            differs=_code("nvmlDeviceGetPowerManagementLimit", 16),
        ),
        Trial("NVML 15 for all", machine, ("gpu.lost 1",), differs=_code("*", 15)),
    )
)
_INFOROM = tuple(
    trial
    for machine in _SEVERAL
    for trial in (
        *(
            Trial(f"{call} answers 14", machine, ("driver.inforom_corrupted 1",), differs=_code(call, 14))
            for call in (
                "nvmlDeviceGetInforomImageVersion",
                "nvmlDeviceGetSerial",
                "nvmlDeviceValidateInforom",
            )
        ),
        Trial("the call is not supported", machine, differs=_code("nvmlDeviceValidateInforom", 3)),
    )
)
_WORDS = tuple(
    trial
    for machine in ("h100x8", "a100x8", "b200x8", "h200x8")
    for trial in (
        *(
            Trial(f"{lines}", machine, ("driver.unknown_value 1",), differs=_gpu(lines))
            for lines in (
                'compute_mode = "unknown_7"',
                'persistence_mode = "unknown_2"',
                'clocks_event_reasons = ["bit_14"]\nutilization_percent = 97',
            )
        ),
        Trial(
            "a newer product", machine, differs='[gpu]\narchitecture = "unknown_15"\nbrand = "unknown_20"\n'
        ),
        Trial(
            "an idle GPU with a new reason",
            machine,
            differs=_gpu('clocks_event_reasons = ["gpu_idle", "bit_14"]'),
        ),
    )
)

KINDS = (
    Kind("readings: memory hotter than it may be", _HOT),
    Kind("readings: less memory than it should have", _SMALL),
    Kind("readings: a recovery or a reset is asked for", _RECOVERY),
    Kind("readings: a corrupted InfoROM", _INFOROM),
    Kind("readings: numbers that gpudiag does not know", _WORDS),
)
