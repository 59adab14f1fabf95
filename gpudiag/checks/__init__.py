"""Checks: pure functions from what was gathered to findings. BUILTIN lists them in run order."""

from gpudiag.checks.devices import gpu_count, gpu_hung, gpu_lost
from gpudiag.checks.registry import Check
from gpudiag.checks.sources import nvml_answers, sources_agree
from gpudiag.checks.sxid import sxid_kernel_log
from gpudiag.checks.xid import xid_kernel_log

BUILTIN: tuple[Check, ...] = (
    nvml_answers,
    gpu_lost,
    gpu_hung,
    gpu_count,
    sources_agree,
    xid_kernel_log,
    sxid_kernel_log,
)
