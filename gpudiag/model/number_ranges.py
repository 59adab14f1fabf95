"""Numbers in words: which ranks, GPUs and links, and how many of a thing.

Lists of words and the order of names are here too.
"""

from collections.abc import Iterable, Sequence

_MOST_PARTS = 8


def number_ranges(numbers: Iterable[int]) -> str:
    """The numbers in short: `2`, `0, 1 and 3`, `0-6 and 8`; of more than eight parts the rest is counted."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[tuple[str, int]] = []  # each with how many numbers it holds
    for run in runs:
        parts += [(f"{run[0]}-{run[-1]}", len(run))] if len(run) > 2 else [(str(one), 1) for one in run]
    words = [text for text, _ in parts[:_MOST_PARTS]]
    more = sum(count for _, count in parts[_MOST_PARTS:])
    if more:
        words.append(f"{more} more")
    return join_words(words)


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 1 and 3`, `ranks 0-6 and 8`."""
    several = set(ranks)
    return f"rank{'s' * (len(several) != 1)} {number_ranges(several)}"


def count_of(number: int, noun: str) -> str:
    """`1 rank`, `0 ranks`, `8 ranks`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def order_of_name(name: str) -> tuple[str, int]:
    """The key by which names with a number are sorted: mlx5_2 stands before mlx5_10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)


def join_words(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; empty for none."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
