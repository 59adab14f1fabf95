"""Names that people type: which one was probably meant, or which there are."""

import difflib
from collections.abc import Iterable


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """`did you mean h100x8?` where one name is near, else the list of all."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"there are: {', '.join(names)}"
