"""The numbers that ranks contribute, chosen so that every way of summing them is exact.

Rank r contributes T[(h(i) + r) mod P] at element i, so that the sum over n ranks is E[h(i)] with
E[j] = T[j] + ... + T[j + n - 1]: what every rank must hold afterwards costs O(elements) to know, not
O(elements x ranks). For floats no sum of any part of n consecutive entries leaves the integers that
the mantissa holds, so that any order and any tree of summation gives the same bits, and a result is
compared bit for bit, without a tolerance. Integers of 32 and 64 bits stay in range; 8-bit ones wrap
around modulo 256, which is exact as well.

Where the dtype has room, no entry of T is zero and no two are alike: then a contribution that is
dropped, counted twice or taken from another rank changes every single element. Narrow dtypes with
very many ranks have no such room (bfloat16 counts to 256); there it changes a part of the elements.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from types import MappingProxyType

# Largest magnitude up to which every integer is exact: 2^(mantissa bits, the hidden one included)
# for floats (IEEE 754; bfloat16 has 8), the type's own range for integers.
EXACT_LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "float64": 2**53,
        "float32": 2**24,
        "float16": 2**11,
        "bfloat16": 2**8,
        "int32": 2**31 - 1,
        "int64": 2**63 - 1,
    }
)
# 8-bit integers wrap around: any value may be contributed.
WRAPPING = MappingProxyType({"int8": (-128, 127), "uint8": (0, 255)})

_LARGEST_PERIOD = 1021  # a prime; more entries would only make the tables longer
_ATTEMPTS = 32


@dataclass(frozen=True, slots=True)
class Table:
    """T and E for one dtype and world size: `values` and `sums` have the same prime length.

    `distinct` says that no entry of T is zero and no two are alike.
    """

    values: tuple[int, ...]
    sums: tuple[int, ...]
    distinct: bool


@cache
def sum_table(dtype: str, world_size: int) -> Table:
    """The table for sums over `world_size` ranks: the same on every rank and in every run."""
    source = random.Random(f"{dtype} {world_size}")  # noqa: S311 - reproducible data, not a secret
    best = _draw(source, dtype, world_size)
    for _ in range(_ATTEMPTS):
        if len(set(best.sums)) == len(best.sums):
            break
        best = max(best, _draw(source, dtype, world_size), key=lambda table: len(set(table.sums)))
    return best


def _draw(source: random.Random, dtype: str, world_size: int) -> Table:
    values = _draw_values(source, dtype, world_size)
    sums = window_sums(values, world_size)
    if dtype in WRAPPING:
        low, high = WRAPPING[dtype]
        sums = tuple((total - low) % (high - low + 1) + low for total in sums)
    distinct = 0 not in values and len(set(values)) == len(values)
    return Table(tuple(values), sums, distinct)


def _draw_values(source: random.Random, dtype: str, world_size: int) -> Sequence[int]:
    # A window of n entries must not be the whole table, or E would be the same everywhere.
    shortest = next_prime(2 * world_size + 1)
    if dtype in WRAPPING:
        return _draw_between(source, *WRAPPING[dtype], shortest)
    limit = EXACT_LIMITS[dtype]
    bound = limit // world_size
    if bound >= 1:
        return _draw_between(source, -bound, bound, shortest)
    return _sparse_values(source, limit, world_size)


def _draw_between(source: random.Random, low: int, high: int, shortest: int) -> Sequence[int]:
    """Distinct non-zero numbers from `low` to `high` where there are enough of them, else repeated ones."""
    period = largest_prime_below(min(high - low, max(_LARGEST_PERIOD, shortest)))
    if period < shortest:
        return [source.randint(low, high) for _ in range(shortest)]
    drawn: dict[int, None] = {}  # a set that keeps its order
    while len(drawn) < period:
        number = source.randint(low, high)
        if number:
            drawn[number] = None
    return list(drawn)


def _sparse_values(source: random.Random, limit: int, world_size: int) -> Sequence[int]:
    """Ones and minus ones among zeros, so few that no n consecutive entries hold more than `limit` of either."""
    period = next_prime(2 * world_size + 1)
    share = min(limit / world_size, 1 / 3)  # of each sign: at most two thirds are not zero
    while True:
        share *= 0.95
        values = source.choices((1, -1, 0), weights=(share, share, 1 - 2 * share), k=period)
        if _within(values, world_size, limit):
            return values


def _within(values: Sequence[int], width: int, limit: int) -> bool:
    positive = window_sums([max(value, 0) for value in values], width)
    negative = window_sums([min(value, 0) for value in values], width)
    return max(positive) <= limit and min(negative) >= -limit


def window_sums(values: Sequence[int], width: int) -> tuple[int, ...]:
    """For each entry, the sum of the `width` entries that start there, going round at the end."""
    totals = [0, *accumulate((*values, *values[:width]))]
    return tuple(totals[start + width] - totals[start] for start in range(len(values)))


def next_prime(number: int) -> int:
    """The smallest prime that is not below `number`."""
    while not _is_prime(number):
        number += 1
    return number


def largest_prime_below(number: int) -> int:
    """The largest prime that is not above `number`; 2 for anything smaller."""
    while number > 2 and not _is_prime(number):
        number -= 1
    return max(number, 2)


def _is_prime(number: int) -> bool:
    if number < 2:
        return False
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
