"""Names that people type: which one was probably meant, or which there are."""

from collections.abc import Iterable

from gpudiag.model.nearest import find_nearest


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """`did you mean h100x8?` where one name is near, else the list of all."""
    names = sorted(known)
    near = find_nearest(name, names)
    return f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
