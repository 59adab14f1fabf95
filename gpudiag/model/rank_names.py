"""Ranks in words."""


def name_ranks(ranks: tuple[int, ...]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts, first = [], 0
    for place, rank in enumerate(ranks):
        if place + 1 == len(ranks) or ranks[place + 1] != rank + 1:
            parts.append(str(rank) if ranks[first] == rank else f"{ranks[first]}-{rank}")
            first = place + 1
    more = f" and {len(parts) - 8} more ranges" if len(parts) > 8 else ""
    return f"ranks {', '.join(parts[:8])}{more}"
