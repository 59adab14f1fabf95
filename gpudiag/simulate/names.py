"""Names that people type: which one was probably meant, or which there are."""

from collections.abc import Iterable

from gpudiag.model.nearest import did_you_mean


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """`did you mean h100x8?` where one name is near, else the list of all."""
    names = sorted(known)
    return did_you_mean(name, names) or f"there are: {', '.join(names)}"
