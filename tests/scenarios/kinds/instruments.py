"""A single instrument that gives no value, for a moment or for good, on a GPU that is otherwise read; and
more than one.

From reports: the power of a V100 (Azure/azhpc-diagnostics issue 77), the fan of a GeForce (enkore/i3pystatus
pull request 850), its power and code 999 (trexminer/T-Rex issue 454), a fan beside a power that is not
supported (NVIDIA/open-gpu-kernel-modules issue 1193), the default power limit (Quake4/MindMiner issue 627);
and a GPU whose firmware has stopped, which loses most of them at once (gpustack/runtime pull request 26).
"""

from tests.scenarios.kinds.trial import Kind, Trial


def _failing(index: int, *calls: str, way: str = "code = 999") -> str:
    faults = ", ".join(f'{{ call = "{call}", {way} }}' for call in calls)
    return f"[gpus.{index}]\ncalls = [{faults}]\n"


def _unread(words: str, machine: str, index: int, reading: str, more: str = "") -> Trial:
    differs = f'[gpus.{index}]\nmissing.error = ["{reading}"]\n{more}'
    return Trial(words, machine, (f"nvml.value_not_read {index}",), differs=differs)


def _once(words: str, machine: str, call: str, code: int) -> Trial:
    """A near miss: the call fails the first time alone."""
    return Trial(f"{words}, once", machine, differs=_failing(1, call, way=f"code = {code}, nth = 1"))


_ALONE = (
    _unread("power", "v100x8", 1, "power_draw_watts"),
    _unread("fan", "rtx4090x2", 0, "fan_speed_percent"),
    _unread("power", "t4x1", 0, "power_draw_watts"),
    _unread(
        *("a fan beside a power that is not supported", "a6000x4", 2, "fan_speed_percent"),
        more='missing.not_supported = ["power_draw_watts"]\n',
    ),
    Trial(
        "the default power limit",
        "l40sx8",
        ("nvml.value_not_read 3",),
        differs=_failing(3, "nvmlDeviceGetPowerManagementDefaultLimit"),
    ),
    _unread("temperature", "v100x8", 5, "temperature_celsius"),
    _once("power", "v100x8", "nvmlDeviceGetPowerUsage", 999),
    _once("a serial number", "v100x8", "nvmlDeviceGetSerial", 10),
    _once("a fan", "rtx4090x2", "nvmlDeviceGetFanSpeed*", 23),
)
_SEVERAL = (
    *(
        Trial(
            "temperature, clocks and utilization",
            machine,
            ("nvml.call_failed 2",),
            differs=_failing(
                2, "nvmlDeviceGetTemperature*", "nvmlDeviceGetClockInfo", "nvmlDeviceGetUtilizationRates"
            ),
        )
        for machine in ("h100x8", "v100x8", "l40sx8", "a100x8")
    ),
    Trial(
        "a serial number alone: no instrument",
        "h100x8",
        ("nvml.call_failed 2",),
        differs=_failing(2, "nvmlDeviceGetSerial"),
    ),
    Trial(
        "a fan alone, not supported", "h100x8", differs=_failing(2, "nvmlDeviceGetFanSpeed*", way="code = 3")
    ),
)
CRASHES = "a call that ends its process"
_CRASHING = (
    *(
        Trial(CRASHES, machine, ("nvml.call_failed 1",), differs=_failing(1, call, way="crash = true"))
        for machine, call in (
            ("h100x8", "nvmlDeviceGetEncoderUtilization"),
            ("l40sx8", "nvmlDeviceGetMemoryErrorCounter"),
            ("b200x8", "nvmlDeviceGetP2PStatus"),
        )
    ),
    Trial(
        f"{CRASHES} once", "a100x8", differs=_failing(1, "nvmlDeviceGetSerial", way="crash = true, nth = 2")
    ),
)

KINDS = (
    Kind("an instrument that gives no value", _ALONE),
    Kind("several readings that give no value", _SEVERAL),
    Kind("a call into NVML that ends its process", _CRASHING),
)
