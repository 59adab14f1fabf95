"""gpudiag: are the GPUs of this machine, or of this job's machines, fit to train on?

For programs: `list_devices`, `take_snapshot` and `preflight` (docs/python-api.md). They are loaded when they
are used: `import gpudiag` loads nothing else.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpudiag import errors
    from gpudiag.library import list_devices, preflight, take_snapshot
    from gpudiag.model.device import Device, Snapshot
    from gpudiag.model.finding import Finding, Outcome
    from gpudiag.model.reading import Missing
    from gpudiag.model.report import Report

__all__ = [
    "Device",
    "Finding",
    "Missing",
    "Outcome",
    "Report",
    "Snapshot",
    "__version__",
    "errors",
    "list_devices",
    "preflight",
    "take_snapshot",
]
__version__ = "0.1.0"

_PLACES = {
    "list_devices": "gpudiag.library",
    "preflight": "gpudiag.library",
    "take_snapshot": "gpudiag.library",
    "Device": "gpudiag.model.device",
    "Snapshot": "gpudiag.model.device",
    "Finding": "gpudiag.model.finding",
    "Outcome": "gpudiag.model.finding",
    "Missing": "gpudiag.model.reading",
    "Report": "gpudiag.model.report",
}


if not TYPE_CHECKING:  # to a type checker, a name that is not above is a mistake

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "errors":
            return import_module("gpudiag.errors")
        if name not in _PLACES:
            raise AttributeError(f"module 'gpudiag' has no attribute {name!r}")
        return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
