"""A stand-in for pynvml: a table of answers by function, with pynvml's own exceptions."""

from types import SimpleNamespace

import pynvml

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
VERSION_MISMATCH = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Raises:
    """An answer that is an exception: a return code of NVML, or any other."""

    def __init__(self, what):
        self.error = pynvml.NVMLError(what) if isinstance(what, int) else what


class FakeNvml:
    """pynvml with the given answers; a function without one is not supported by this GPU.

    An answer is a value, a function of the call's arguments, or Raises. `fields` are the answers of
    nvmlDeviceGetFieldValues: a number, or Raises of a code; `calls` are the names of the calls, in order.
    """

    nvmlMemory_v2 = pynvml.nvmlMemory_v2
    c_nvmlEccSramErrorStatus_v1_t = pynvml.c_nvmlEccSramErrorStatus_v1_t
    c_nvmlGpuFabricInfo_t = pynvml.c_nvmlGpuFabricInfo_t
    c_nvmlGpuFabricInfo_v2_t = pynvml.c_nvmlGpuFabricInfo_v2_t
    c_nvmlGpuFabricInfo_v3_t = pynvml.c_nvmlGpuFabricInfo_v3_t

    def __init__(self, answers=(), fields=(), absent=()):
        self.answers = dict(answers)
        self.fields = dict(fields)
        self.absent = set(absent)
        self.calls = []

    def __getattr__(self, name):
        if name in self.absent or not name.startswith("nvml"):
            raise AttributeError(name)

        def call(handle, *arguments, **named):
            self.calls.append(name)
            if name == "nvmlDeviceGetFieldValues" and name not in self.answers:
                return [self._field(field_id) for field_id in arguments[0]]
            answer = self.answers.get(name, Raises(NOT_SUPPORTED))
            if isinstance(answer, Raises):
                raise answer.error
            return answer(*arguments, **named) if callable(answer) else answer

        return call

    def _field(self, field_id):
        answer = self.fields.get(field_id, Raises(NOT_SUPPORTED))
        if isinstance(answer, Raises):
            return field_value(field_id, code=answer.error.value)
        return field_value(field_id, answer)


def field_value(field_id, number=0, *, code=0, value_type=3):
    """One nvmlFieldValue_t; the members of its union that are not of its type hold something else."""
    value = SimpleNamespace(**dict.fromkeys(_MEMBERS, 0xBAD))
    if value_type < len(_MEMBERS):
        setattr(value, _MEMBERS[value_type], number)
    return SimpleNamespace(fieldId=field_id, nvmlReturn=code, valueType=value_type, value=value)
