"""Numbers as benchmarks print them."""

import math


def as_number(word: str) -> float | None:
    """The finite number that a word is; None for `N/A`, `nan`, `inf` and other words."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
