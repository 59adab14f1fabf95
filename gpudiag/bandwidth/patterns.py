"""Memory patterns: write them to most of the free memory, read them back, name every bit that flipped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from gpudiag.bandwidth.bench import Bench
from gpudiag.bandwidth.memory import TooLittleMemoryError, attempt, beyond_cache_bytes, free_bytes
from gpudiag.model.active import MEMORY_PATTERNS, PatternResult
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.units import GIB, MIB

_SHARE_OF_FREE_MEMORY = 0.9
_WORD_BYTES = 8
_BLOCK_BYTES_ON_GPU = GIB
_BLOCK_BYTES_ON_CPU = 64 * MIB
_PASSES = 2
_BLOCKS_AT_WORK = 4  # indices, a pattern, and what it is worked out in
_LEAST_BLOCKS = 16  # of free memory: so that those at work take little of it

Pattern = Callable[[torch.Tensor, int], torch.Tensor]


def _constant(value: int) -> Pattern:
    return lambda index, turn: torch.full_like(index, value)


def _walking_ones(index: torch.Tensor, turn: int) -> torch.Tensor:
    return torch.ones_like(index) << ((index + turn) % 64)


def _walking_zeros(index: torch.Tensor, turn: int) -> torch.Tensor:
    return ~_walking_ones(index, turn)


def _address(index: torch.Tensor, turn: int) -> torch.Tensor:
    """Each cell holds its own number: two cells that share an address line cannot both be right."""
    return index if turn % 2 == 0 else ~index


def _mixed(index: torch.Tensor, turn: int) -> torch.Tensor:
    """Bits without a pattern, worked out from the address (the finaliser of SplitMix64)."""
    mixed = (index + turn) * -0x61C8864680B583EB
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    return mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)


PATTERNS: Mapping[str, Pattern] = {
    "zeros": _constant(0),
    "ones": _constant(-1),
    "checkerboard": _constant(0x5555555555555555),
    "inverse checkerboard": _constant(~0x5555555555555555),
    "walking ones": _walking_ones,
    "walking zeros": _walking_zeros,
    "address": _address,
    "mixed": _mixed,
}


@dataclass(slots=True)
class _Memory:
    """What is tested, and how much it was to be."""

    wanted_bytes: int = 0
    blocks: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Wrong:
    """What came back wrong so far."""

    words: int = 0
    first_pattern: Reading[str] = NOT_ASKED
    first_offset_bytes: Reading[int] = NOT_ASKED
    flipped: int = field(default=0)


def measure_memory_patterns(bench: Bench) -> None:
    """Write and read back every pattern, and emit a PatternResult."""
    memory = _Memory()
    allocate = partial(attempt, bench, MEMORY_PATTERNS, partial(_allocate, bench, memory))
    bench.step(f"{MEMORY_PATTERNS} allocate", allocate)
    wrong = _Wrong()
    for turn in range(_PASSES):
        for name, pattern in PATTERNS.items():
            test = partial(_test, bench, memory, name, pattern, turn, wrong)
            bench.step(f"{MEMORY_PATTERNS} {name}", partial(attempt, bench, MEMORY_PATTERNS, test))
    if memory.blocks:
        result = PatternResult(
            rank=bench.rank,
            device_uuid=bench.device_uuid,
            wanted_bytes=memory.wanted_bytes,
            tested_bytes=sum(block.nbytes for block in memory.blocks),
            patterns=tuple(PATTERNS),
            wrong_words=wrong.words,
            first_pattern=wrong.first_pattern,
            first_offset_bytes=wrong.first_offset_bytes,
            flipped_bits=f"{wrong.flipped:#018x}" if wrong.words else NOT_ASKED,
        )
        bench.emit("patterns", result)
    memory.blocks.clear()
    if bench.is_cuda:
        torch.cuda.empty_cache()
    bench.group.barrier()


def _allocate(bench: Bench, memory: _Memory) -> None:
    """Fill `memory` with what the plan wants, or most of a GPU's free memory, as far as the device gives it.

    Raises:
        TooLittleMemoryError: the free memory is little more than the GPU's cache.
    """
    block_bytes = _BLOCK_BYTES_ON_GPU if bench.is_cuda else _BLOCK_BYTES_ON_CPU
    wanted = bench.plan.pattern_bytes
    if wanted is None:
        # A pattern is worked out in blocks beside the memory that it is written to.
        free = free_bytes(bench.device)
        block_bytes = min(block_bytes, free // _LEAST_BLOCKS)
        wanted = int(free * _SHARE_OF_FREE_MEMORY) - _BLOCKS_AT_WORK * block_bytes
        if wanted < (least := beyond_cache_bytes(bench)):
            raise TooLittleMemoryError(" to be beyond its cache", free + least - wanted, free)
    memory.wanted_bytes = max(_WORD_BYTES, wanted // _WORD_BYTES * _WORD_BYTES)
    while (left := memory.wanted_bytes - sum(block.nbytes for block in memory.blocks)) > 0:
        try:
            words = min(left, block_bytes) // _WORD_BYTES
            memory.blocks.append(torch.empty(words, dtype=torch.int64, device=bench.device))
        except (torch.OutOfMemoryError, RuntimeError):  # the CPU's allocator raises the latter
            break


def _test(bench: Bench, memory: _Memory, name: str, pattern: Pattern, turn: int, wrong: _Wrong) -> None:
    """Write the pattern to all blocks, and read it back; if memory runs out, none of them is tested."""
    try:
        _write_and_read(bench, memory.blocks, name, pattern, turn, wrong)
    except RuntimeError:
        memory.blocks.clear()
        raise


def _write_and_read(
    bench: Bench, blocks: list[torch.Tensor], name: str, pattern: Pattern, turn: int, wrong: _Wrong
) -> None:
    start = 0
    for block in blocks:
        block.copy_(pattern(_indices(block, start), turn))
        start += len(block)
    if blocks:
        bench.corrupt(blocks[0])
    start = 0
    for block in blocks:
        expected = pattern(_indices(block, start), turn)
        if not torch.equal(block, expected):
            _note(wrong, name, block ^ expected, start)
        start += len(block)


def _indices(block: torch.Tensor, start: int) -> torch.Tensor:
    return torch.arange(start, start + len(block), dtype=torch.int64, device=block.device)


def _note(wrong: _Wrong, name: str, differences: torch.Tensor, start: int) -> None:
    places = torch.nonzero(differences).flatten()
    if wrong.words == 0:
        wrong.first_pattern = name
        wrong.first_offset_bytes = (start + int(places[0])) * _WORD_BYTES
    wrong.words += len(places)
    for mask in torch.unique(differences[places]).tolist():
        wrong.flipped |= mask & 0xFFFFFFFFFFFFFFFF
