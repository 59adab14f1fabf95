"""The queries of NVIDIA's own board for dcgm-exporter, grafana.com 12239, by the version: facts, without the
boards.

Of NVIDIA/gpu-monitoring-tools and NVIDIA/dcgm-exporter, grafana/dcgm-exporter-dashboard.json, read 2026-11:
what its history has of different queries. The legends, the looks and the rest of the boards are not here.
"""

_ONE = '{instance=~"$instance", gpu=~"$gpu"}'
_NAMED = '{Hostname=~"$hostname", instance=~"$instance", gpu=~"$gpu"}'
_HOST = '{Hostname=~"$Hostname", gpu=~"$gpu"}'


def _totals(labels: str) -> tuple[str, ...]:
    return (f"avg(DCGM_FI_DEV_GPU_TEMP{labels})", f"sum(DCGM_FI_DEV_POWER_USAGE{labels})")


def _second(labels: str) -> tuple[str, ...]:
    return (
        f"DCGM_FI_DEV_GPU_TEMP{labels}",
        f"DCGM_FI_DEV_POWER_USAGE{labels}",
        f"DCGM_FI_DEV_SM_CLOCK{labels} * 1000000",
        f"DCGM_FI_DEV_GPU_UTIL{labels}",
        f"DCGM_FI_DEV_FB_USED{labels}",
        f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{labels}",
        *_totals(labels),
    )


def _by_instance(name: str) -> str:
    return f"max({name}{_HOST}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)"


BOARD_12239 = {
    "first": (
        *(
            f"DCGM_FI_DEV_{name}{_ONE}"
            for name in ("GPU_TEMP", "POWER_USAGE", "GPU_UTIL", "MEM_COPY_UTIL", "FB_USED", "FB_FREE")
        ),
        *(f"DCGM_FI_DEV_{name}{_ONE} * 1000000" for name in ("SM_CLOCK", "MEM_CLOCK")),
        *_totals(_ONE),
    ),
    "second": _second(_ONE),
    "with GR_ENGINE_ACTIVE": (f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{_ONE}",),
    "by Hostname": _second(_NAMED),
    "with MIG": (
        f"max(DCGM_FI_DEV_GPU_TEMP{_HOST}) by (Hostname, gpu, uuid)",
        f"avg(DCGM_FI_DEV_GPU_TEMP{_HOST})",
        f"max(DCGM_FI_DEV_POWER_USAGE{_HOST}) by (Hostname, gpu, uuid)",
        f"sum(max(DCGM_FI_DEV_POWER_USAGE{_HOST}) by (gpu))",
        f"max(DCGM_FI_DEV_SM_CLOCK{_HOST} * 1000000) by (Hostname, UUID, gpu)",
        _by_instance("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        _by_instance("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
        _by_instance("DCGM_FI_DEV_FB_USED"),
    ),
}
