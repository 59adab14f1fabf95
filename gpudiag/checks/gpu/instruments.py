"""One instrument of a GPU that does not answer costs its value, not the GPU.

NVML fails on one power or fan reading of healthy GPUs (Azure/azhpc-diagnostics issue 77, Quake4/MindMiner
issue 627). If more fail, the firmware may have stopped (gpustack/runtime pull request 26): ERROR.
"""

from gpudiag.model.device import Device, FailedCall
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.declaration import Call, Field, Question
from gpudiag.reference.readings import READINGS

# What an instrument shows at this moment, in groups that one call answers. None of them states a fault by
# itself.
_INSTRUMENTS: tuple[tuple[str, ...], ...] = (
    ("power_draw_watts",),
    ("energy_joules",),
    *((f"power_limit_{which}watts",) for which in ("", "enforced_", "default_", "min_", "max_")),
    ("fan_speed_percent",),
    ("utilization_percent", "memory_utilization_percent"),
    ("encoder_utilization_percent", "decoder_utilization_percent"),
    ("pstate",),
    ("temperature_celsius",),
    ("memory_temperature_celsius",),
    ("sm_clock_mhz",),
    ("graphics_clock_mhz",),
    ("memory_clock_mhz",),
    ("video_clock_mhz",),
)
# Of those that no single number answers.
_BY_HAND = {
    "encoder_utilization_percent": ("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization"),
    "pstate": ("nvmlDeviceGetPerformanceState",),
}
_OF_GPU = tuple(name for name in Device.__match_args__ if name not in ("id", "responding"))


def lone_failure(device: Device) -> tuple[str, ...]:
    """The one instrument whose readings failed, where all else of the GPU was read; else none."""
    if device.responding is not True:
        return ()
    failed = tuple(name for name in _OF_GPU if _has_failed(getattr(device, name)))
    return failed if failed and any(set(failed) <= set(group) for group in _INSTRUMENTS) else ()


def asks_only(calls: list[FailedCall], readings: tuple[str, ...]) -> bool:
    """Whether each failed call asks for one of these readings, and none ends its process."""
    functions = {name for reading in readings for name in _functions(reading)}
    return all(call.function in functions and not call.is_fatal for call in calls)


def _has_failed(value: object) -> bool:
    return isinstance(value, Missing) and value.reason is MissingReason.ERROR


def _functions(reading: str) -> tuple[str, ...]:
    """The calls that are asked for a reading, as `FailedCall` names them."""
    question = next(declared.question for declared in READINGS if declared.name == reading)
    return _BY_HAND.get(reading, _functions_of(question))


def _functions_of(question: Question | None) -> tuple[str, ...]:
    if isinstance(question, Field):
        return (f"nvmlDeviceGetFieldValues, field {question.number}", *_functions_of(question.otherwise))
    if isinstance(question, Call):
        return (question.function, *_functions_of(question.older))
    return ()
