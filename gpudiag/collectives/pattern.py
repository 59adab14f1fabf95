"""What a rank contributes and what it must hold afterwards, chosen so that every way of reducing it is exact.

Rank r contributes T[(h(i) + r) mod P] at element i, so that a reduction over n ranks is E[h(i)] with
E[j] = T[j] + ... + T[j + n - 1] (or their average, minimum or maximum): what every rank must hold
afterwards costs O(elements) to know, not O(elements x ranks). For floats no sum of any part of n
consecutive entries leaves the integers that the mantissa holds, so that any order and any tree of
summation gives the same bits, and a result is compared bit for bit, without a tolerance. Integers
of 32 and 64 bits stay in range; 8-bit ones wrap around modulo 256, which is exact as well.

Where the dtype has room, no entry of T is zero and no two are alike: then a contribution that is
dropped, counted twice or taken from another rank changes every single element of a sum. Narrow
dtypes with very many ranks have no such room (bfloat16 counts to 256); there it changes a part of
the elements. Data that is only moved may have any bits, so that it identifies the rank it is from.

A rank's data is one long sequence: the table entry at h(position) + rank. Block b of round k starts
a little later in it than block 0 of round 0, so that a new round costs a copy and nothing is
computed between timed operations. A result left over from an earlier round, a block in the wrong
place, or data that landed at another offset therefore differs from what is expected.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from types import MappingProxyType

import torch

from gpudiag.model.operation import OPERATIONS, ROOT, Block

# --- the numbers

# Largest magnitude up to which every integer is exact: 2^(mantissa bits, the hidden one included)
# for floats (IEEE 754; bfloat16 has 8, OCP float8 4 and 3), the type's own range for integers.
EXACT_LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "float64": 2**53,
        "float32": 2**24,
        "float16": 2**11,
        "bfloat16": 2**8,
        "float8_e4m3fn": 2**4,
        "float8_e5m2": 2**3,
        "int32": 2**31 - 1,
        "int64": 2**63 - 1,
    }
)
# 8-bit integers wrap around: any value may be contributed.
WRAPPING: Mapping[str, tuple[int, int]] = MappingProxyType({"int8": (-128, 127), "uint8": (0, 255)})

# Bit patterns of positive finite numbers lie below that of infinity (of NaN in float8_e4m3fn).
BIT_LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "float64": 0x7FF0 << 48,
        "float32": 0x7F80 << 16,
        "float16": 0x7C00,
        "bfloat16": 0x7F80,
        "float8_e4m3fn": 0x7F,
        "float8_e5m2": 0x7C,
        "int8": 2**7,
        "uint8": 2**8,
        "int32": 2**31,
        "int64": 2**63,
    }
)

# nccl-tests' regression of the largest error of a sum of n floats: 1 + factor x n ^ power. It has none for
# 8-bit floats: of our small integers their sums are off by two at most, for up to 63 ranks.
_NARROW_TOLERANCE = 2
_SUM_TOLERANCE = {
    "float64": (1.25, 0.51),
    "float32": (1.25, 0.51),
    "float16": (0.75, 0.91),
    "bfloat16": (0.66, 0.91),
}
_LARGEST_PERIOD = 1021  # a prime; more entries would only make the tables longer
_ATTEMPTS = 32


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


@dataclass(frozen=True, slots=True)
class Table:
    """T and E for one dtype, reduction and world size; both have the same prime length.

    `distinct`: no entry of T is zero, and no two are alike.
    """

    values: tuple[int, ...]
    reduced: tuple[int, ...] | tuple[float, ...]
    distinct: bool


@cache
def reduction_table(reduce: str, dtype: str, world_size: int) -> Table:
    """The table for a reduction over `world_size` ranks: the same on every rank and in every run."""
    source = random.Random(f"{reduce} {dtype} {world_size}")  # noqa: S311 - reproducible data, not a secret
    best = _draw(source, reduce, dtype, world_size)
    for _ in range(_ATTEMPTS):
        if len(set(best.reduced)) == len(best.reduced):
            break
        best = max(best, _draw(source, reduce, dtype, world_size), key=lambda table: len(set(table.reduced)))
    return best


@cache
def bit_patterns(dtype: str, world_size: int) -> tuple[int, ...]:
    """The table for data that is only moved, as bit patterns: distinct where the dtype has enough."""
    source = random.Random(f"bits {dtype} {world_size}")  # noqa: S311 - reproducible data, not a secret
    return tuple(_draw_between(source, 1, BIT_LIMITS[dtype] - 1, next_prime(2 * world_size + 1)))


def is_exact(reduce: str, world_size: int) -> bool:
    """Whether the result is exact: an average is only if n is a power of two."""
    return reduce != "avg" or world_size & (world_size - 1) == 0


def tolerance_ulps(reduce: str, dtype: str, world_size: int) -> int:
    """The units in the last place by which a correct result may differ: 0 if the reduction is exact.

    NCCL averages by multiplying each contribution by 1/n and summing the rounded products. The bound is
    nccl-tests' formula (src/verifiable.cu, calcSumFloatTolerance), found by many random sums.
    """
    if is_exact(reduce, world_size):
        return 0
    if dtype not in _SUM_TOLERANCE:
        return _NARROW_TOLERANCE
    factor, power = _SUM_TOLERANCE[dtype]
    return 1 + int(factor * world_size**power)


def _draw(source: random.Random, reduce: str, dtype: str, world_size: int) -> Table:
    values = _draw_values(source, reduce, dtype, world_size)
    distinct = 0 not in values and len(set(values)) == len(values)
    return Table(tuple(values), _reduce_windows(reduce, dtype, values, world_size), distinct)


def _reduce_windows(
    reduce: str, dtype: str, values: Sequence[int], world_size: int
) -> tuple[int, ...] | tuple[float, ...]:
    if reduce in ("min", "max"):
        choose = min if reduce == "min" else max
        around = (*values, *values[:world_size])
        return tuple(choose(around[start : start + world_size]) for start in range(len(values)))
    sums = window_sums(values, world_size)
    if reduce == "avg":
        return tuple(total / world_size for total in sums)
    if dtype in WRAPPING:
        low, high = WRAPPING[dtype]
        return tuple((total - low) % (high - low + 1) + low for total in sums)
    return sums


def _draw_values(source: random.Random, reduce: str, dtype: str, world_size: int) -> Sequence[int]:
    # A window of n entries must not be the whole table, or E would be the same everywhere.
    shortest = next_prime(2 * world_size + 1)
    if dtype in WRAPPING:
        return _draw_between(source, *WRAPPING[dtype], shortest)
    limit = EXACT_LIMITS[dtype]
    if reduce in ("min", "max"):
        return _draw_between(source, -limit, limit, shortest)
    bound = limit // (world_size + 1)  # one part counted twice is still exact, and so is recognised
    # Where an average is rounded, signs must not cancel: a small result would have a large error.
    signed = is_exact(reduce, world_size)
    if bound < 1:
        return _sparse_values(source, limit, world_size, signed=signed)
    return _draw_between(source, -bound if signed else 1, bound, shortest)


def _draw_between(source: random.Random, low: int, high: int, shortest: int) -> Sequence[int]:
    """Distinct non-zero numbers from `low` to `high` where there are enough of them, else repeated ones."""
    available = high - low + (not low <= 0 <= high)
    period = largest_prime_below(min(available, max(_LARGEST_PERIOD, shortest)))
    if period < shortest:
        return [source.randint(low, high) for _ in range(shortest)]
    drawn: dict[int, None] = {}  # a set that keeps its order
    while len(drawn) < period:
        number = source.randint(low, high)
        if number:
            drawn[number] = None
    return list(drawn)


def _sparse_values(source: random.Random, limit: int, world_size: int, *, signed: bool) -> Sequence[int]:
    """Ones, and if `signed` minus ones, among zeros: at most `limit` of either in n consecutive entries."""
    period = next_prime(2 * world_size + 1)
    share = min(limit / world_size, 1 / 3)  # of each sign: at most two thirds are not zero
    while True:
        share *= 0.95
        negative = share if signed else 0.0
        values = source.choices((1, -1, 0), weights=(share, negative, 1 - share - negative), k=period)
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


# --- as tensors

# h repeats after this prime number of elements, each time with the table rotated a step further.
TILE_ELEMENTS = 131_071
_TILE_ROTATION = 7
ROUNDS = 31
BLOCK_STRIDE_ELEMENTS = 37
_ROUND_EXTRA_ELEMENTS = 211
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def parts_per_buffer(op: str, world_size: int) -> tuple[int, int]:
    """How many parts the largest send and the largest receive buffer of any rank hold."""
    layouts = [OPERATIONS[op].layout(rank, world_size) for rank in {ROOT, world_size - 1}]
    return max(one.sent_units for one in layouts), max(one.received_units for one in layouts)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory seen as integers: `==` on floats would take -0.0 for 0.0 and miss the sign bit."""
    return tensor.view(_BITS[tensor.element_size()])


def torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype of that name."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is not a dtype")
    return dtype


class Pattern:
    """The data of one operation, dtype and reduction, as one rank needs it.

    `reduce` is None for an operation that only moves data. Sequences are built on first use: the rank's
    own, those of the ranks that it gets data from, or the reduced one.
    """

    def __init__(
        self,
        dtype: str,
        reduce: str | None,
        rank: int,
        world_size: int,
        part_elements: int,
        device: torch.device,
    ) -> None:
        """Prepare for parts of up to `part_elements` elements."""
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self._round_stride = world_size * BLOCK_STRIDE_ELEMENTS + _ROUND_EXTRA_ELEMENTS
        last_block = (world_size - 1) * BLOCK_STRIDE_ELEMENTS
        self._length = part_elements + (ROUNDS - 1) * self._round_stride + last_block
        self._sequences: dict[int | None, torch.Tensor] = {}
        self.dtype = torch_dtype(dtype)
        if reduce is None:
            bits = torch.tensor(bit_patterns(dtype, world_size), dtype=torch.int64)
            self._values = self._reduced = bits.to(_BITS[self.dtype.itemsize]).to(device)
        else:
            table = reduction_table(reduce, dtype, world_size)
            self._values = as_bits(_numbers(table.values, self.dtype)).to(device)
            self._reduced = as_bits(_numbers(table.reduced, self.dtype)).to(device)
        self._tile = make_tile(TILE_ELEMENTS, len(self._values), device)

    def prepare(self, op: str) -> None:
        """Build all sequences that this rank needs for `op` now, not between timed operations."""
        layout = OPERATIONS[op].layout(self.rank, self.world_size)
        wanted = {block.source for block in layout.receive} | ({self.rank} if layout.send else set())
        for source in wanted:
            self._sequence(source)

    def block(self, source: int | None, block: int, round_number: int, elements: int) -> torch.Tensor:
        """That block of `source` in that round; if `source` is None, of the reduction over all ranks."""
        start = self.position(block, round_number)
        return self._sequence(source)[start : start + elements]

    def expected(self, block: Block, round_number: int, elements: int) -> torch.Tensor:
        """The data that a part of a result must hold in that round."""
        return self.block(block.source, block.block, round_number, elements)

    def position(self, block: int, round_number: int) -> int:
        """The position where that block of that round starts in every sequence."""
        return (round_number % ROUNDS) * self._round_stride + block * BLOCK_STRIDE_ELEMENTS

    def displacement(self, elements: int) -> tuple[int, int]:
        """Whole rounds and whole blocks in a distance between positions; (0, 0) if it is neither."""
        rounds, rest = divmod(abs(elements), self._round_stride)
        sign = 1 if elements > 0 else -1
        if rounds and rest == 0:
            return sign * rounds, 0
        blocks, rest = divmod(abs(elements), BLOCK_STRIDE_ELEMENTS)
        return (0, sign * blocks) if blocks and rest == 0 and blocks < self.world_size else (0, 0)

    def look_up(self, source: int | None, positions: torch.Tensor) -> torch.Tensor:
        """The entries of a sequence at any positions from 0 up, computed without the sequence."""
        tile = self._tile[positions % TILE_ELEMENTS]
        steps = tile + positions // TILE_ELEMENTS * _TILE_ROTATION + (source or 0)
        bits = self._reduced if source is None else self._values
        return bits[steps % len(bits)].view(self.dtype)

    def _sequence(self, source: int | None) -> torch.Tensor:
        if source not in self._sequences:
            bits = self._reduced if source is None else self._values.roll(-source)
            self._sequences[source] = _spread(bits, self._tile, self._length).view(self.dtype)
        return self._sequences[source]


def _numbers(values: Sequence[int] | Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """The values in that dtype; exact, or rounded once where an average is not exact."""
    wide = torch.float64 if any(isinstance(value, float) for value in values) else torch.int64
    numbers = torch.tensor(values, dtype=wide)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        numbers = numbers.to(torch.float32)  # torch converts only floats to 8-bit floats
    return numbers.to(dtype)


def _spread(bits: torch.Tensor, tile: torch.Tensor, length: int) -> torch.Tensor:
    """`bits` looked up at h(0), h(1), ... for `length` elements."""
    spread = torch.empty(length, dtype=bits.dtype, device=bits.device)
    for index, start in enumerate(range(0, length, TILE_ELEMENTS)):
        piece = spread[start : start + TILE_ELEMENTS]
        torch.index_select(bits.roll(-index * _TILE_ROTATION), 0, tile[: len(piece)], out=piece)
    return spread


@lru_cache(maxsize=8)
def make_tile(elements: int, period: int, device: torch.device) -> torch.Tensor:
    """h(i) for the first elements, read-only: i scrambled by MurmurHash3's finaliser, scaled to [0, period).

    Source: fmix32 of https://github.com/aappleby/smhasher (public domain), in 64-bit arithmetic.
    """
    mixed = torch.arange(1, elements + 1, dtype=torch.int64, device=device)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed ^= mixed >> shift
        mixed = (mixed * factor) & 0xFFFFFFFF
    return (mixed * period) >> 32
