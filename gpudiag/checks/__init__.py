"""Checks: pure functions from what was gathered to findings. BUILTIN lists them in run order."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpudiag.checks.builtin import BUILTIN

__all__ = ["BUILTIN"]


def __getattr__(name: str) -> Any:
    """BUILTIN, loaded when it is first asked for: a listing needs only the checks of `on_gpus`."""
    if name != "BUILTIN":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpudiag.checks.builtin import BUILTIN

    return BUILTIN
