"""Shared memory in which each rank announces each step before it takes it; its agent reads it.

It is anonymous (memfd): no file, no write to a disk. A rank has a page of 64-bit cells and a few texts; a
cell is one aligned store and one load, so no lock is needed, and details are written before the cell that
makes them valid. A torn read is correct at the next look, and no single look judges a rank.
"""

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from struct import Struct
from sys import byteorder

from gpudiag.ranks.stages import Operation, Place, Position

PAGE_BYTES = 4096
_CELL_BYTES = 256  # 32 cells, then the texts


class _Cell:
    """What each 64-bit cell holds; 0: nothing was written, so counts start at 1. Plain numbers are fast."""

    STAGE_COUNT = 0
    STAGE_NS = 1
    ENTERED = 2  # sequence + 1 of the last collective entered
    ENTERED_NS = 3
    LEFT = 4  # sequence + 1 of the last collective left
    LEFT_NS = 5
    ELEMENTS = 6
    PREDICTED_NS = 7
    ITERATION = 8  # iteration + 1
    LINE = 9


@dataclass(frozen=True, slots=True)
class _Text:
    """Where a text lies in the page; a longer text keeps its end, the distinguishing part of a path."""

    offset: int
    size_bytes: int


_STAGE_TEXT = _Text(_CELL_BYTES, 32)
_OP_TEXT = _Text(_CELL_BYTES + 32, 32)
_DTYPE_TEXT = _Text(_CELL_BYTES + 64, 32)
_FILE_TEXT = _Text(_CELL_BYTES + 96, 512)

# The last operations entered, so that ranks that have moved on can still be compared at one sequence: a
# ring of slots, one for each change of operation. Each holds the first sequence (+ 1; 0 while it is being
# written), then op, dtype, elements and the stage count.
HISTORY_LENGTH = 16
_HISTORY_OFFSET = _CELL_BYTES + 1024
_SLOT_BYTES = 88
_SLOT_ANNOUNCED = Struct("=32s32sqq")

# The last stages entered, by their count: what a rank further behind has missed.
_STAGE_HISTORY_OFFSET = _HISTORY_OFFSET + HISTORY_LENGTH * _SLOT_BYTES
_STAGE_HISTORY_LENGTH = 16
_STAGE_SLOT = Struct("=q32s")


class PositionBoard:
    """Shared memory with one page per local rank, handed to other processes as a file descriptor."""

    def __init__(self, descriptor: int, ranks: int) -> None:
        """Map the memory behind `descriptor`; both sides must agree on `ranks`."""
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, ranks * PAGE_BYTES)

    @classmethod
    def create(cls, ranks: int) -> "PositionBoard":
        """A new board for that many ranks, with nothing written."""
        descriptor = os.memfd_create("gpudiag-positions", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, ranks * PAGE_BYTES)
        return cls(descriptor, ranks)

    def writer(self, local_index: int) -> "PositionWriter":
        """The writer for the rank with that page."""
        return PositionWriter(self._page(local_index))

    def read_position(self, local_index: int, *, history: bool = False) -> Position | None:
        """Where the rank with that page is (with `history`, also was); None before its first stage."""
        page = self._page(local_index)
        cells = page[:_CELL_BYTES].cast("q")
        if not cells[_Cell.STAGE_COUNT]:
            return None
        position = _read_page(cells, page)
        return _with_history(position, page) if history else position

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last reference to it."""
        os.close(self.descriptor)

    def _page(self, local_index: int) -> memoryview:
        start = local_index * PAGE_BYTES
        return memoryview(self._memory)[start : start + PAGE_BYTES]


class PositionWriter:
    """One rank's side of the board: every method is a handful of stores."""

    def __init__(self, page: memoryview, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Write into `page`, of which this is the only writer."""
        self._page = page
        self._cells = page[:_CELL_BYTES].cast("q")
        self._clock_ns = clock_ns
        self._announced: tuple[str, str, int, float | None] | None = None
        self._history = page[_HISTORY_OFFSET : _HISTORY_OFFSET + HISTORY_LENGTH * _SLOT_BYTES]
        self._history_cells = self._history.cast("q")
        self._changes = 0  # of the announced operation, so far
        self._place: Place | None = None

    def enter_stage(self, stage: str, place: Place) -> None:
        """Publish that the rank enters `stage`, and the line of code that asked for it."""
        cells = self._cells
        self._write_place(place)
        self._write_text(_STAGE_TEXT, stage)
        self._announced = None  # the history records the stage too, so it must be written anew
        cells[_Cell.STAGE_NS] = self._clock_ns()
        count = cells[_Cell.STAGE_COUNT] + 1
        _STAGE_SLOT.pack_into(self._page, _stage_slot(count), count, stage.encode()[-32:])
        cells[_Cell.STAGE_COUNT] = count

    def enter_operation(
        self, sequence: int, announced: tuple[str, str, int, float | None], place: Place
    ) -> int:
        """Publish that the rank is about to enter collective `sequence`; return the time in nanoseconds.

        `announced` is op, dtype, elements and predicted seconds.
        """
        cells = self._cells
        if announced != self._announced:
            self._write_announced(sequence, announced)
        if place != self._place:
            self._write_place(place)
        now_ns = self._clock_ns()
        cells[_Cell.ENTERED_NS] = now_ns
        cells[_Cell.ENTERED] = sequence + 1
        return now_ns

    def leave_operation(self, sequence: int) -> int:
        """Publish that the rank came back from collective `sequence`; return the time in nanoseconds."""
        now_ns = self._clock_ns()
        self._cells[_Cell.LEFT_NS] = now_ns
        self._cells[_Cell.LEFT] = sequence + 1
        return now_ns

    def enter_iteration(self, iteration: int) -> None:
        """Publish that timed iteration `iteration` starts."""
        self._cells[_Cell.ITERATION] = iteration + 1

    def note_place(self, place: Place) -> None:
        """Publish the line that the rank is at, without a change of stage or collective."""
        if place != self._place:
            self._write_place(place)

    def _write_announced(self, sequence: int, announced: tuple[str, str, int, float | None]) -> None:
        self._announced = announced
        op, dtype, elements, predicted_seconds = announced
        self._write_text(_OP_TEXT, op)
        self._write_text(_DTYPE_TEXT, dtype)
        self._cells[_Cell.ELEMENTS] = elements
        self._cells[_Cell.PREDICTED_NS] = (
            0 if predicted_seconds is None else max(1, int(predicted_seconds * 1e9))
        )
        start = self._changes % HISTORY_LENGTH * _SLOT_BYTES
        self._changes += 1
        self._history_cells[start // 8] = 0
        stage_count = self._cells[_Cell.STAGE_COUNT]
        _SLOT_ANNOUNCED.pack_into(
            self._history, start + 8, op.encode()[-32:], dtype.encode()[-32:], elements, stage_count
        )
        self._history_cells[start // 8] = sequence + 1

    def _write_place(self, place: Place) -> None:
        if self._place is None or self._place[0] != place[0]:
            self._write_text(_FILE_TEXT, place[0])
        self._cells[_Cell.LINE] = place[1]
        self._place = place

    def _write_text(self, where: _Text, text: str) -> None:
        data = text.encode()[-where.size_bytes :].ljust(where.size_bytes, b"\0")
        self._page[where.offset : where.offset + where.size_bytes] = data


def _read_page(cells: memoryview, page: memoryview) -> Position:
    entered, left = cells[_Cell.ENTERED], cells[_Cell.LEFT]
    moved_ns = max(cells[_Cell.STAGE_NS], cells[_Cell.ENTERED_NS], cells[_Cell.LEFT_NS])
    file = _read_text(page, _FILE_TEXT)
    return Position(
        stage=_read_text(page, _STAGE_TEXT),
        stage_count=cells[_Cell.STAGE_COUNT],
        operation=_read_operation(cells, page) if entered else None,
        inside=entered > left,
        entered_at=cells[_Cell.ENTERED_NS] / 1e9 if entered else None,
        moved_at=moved_ns / 1e9,
        iteration=cells[_Cell.ITERATION] - 1 if cells[_Cell.ITERATION] else None,
        place=f"{file}:{cells[_Cell.LINE]}" if file else None,
    )


def _with_history(position: Position, page: memoryview) -> Position:
    stages = _read_stages(page, position.stage_count)
    return replace(position, history=_read_history(page, position.stage_count, stages), stages=stages)


def _read_history(page: memoryview, stage_count: int, stages: tuple[str, ...]) -> tuple[Operation, ...]:
    """The operations in the ring, oldest first; a slot that is being written is skipped."""
    operations = []
    for start in range(_HISTORY_OFFSET, _HISTORY_OFFSET + HISTORY_LENGTH * _SLOT_BYTES, _SLOT_BYTES):
        slot = bytes(page[start : start + _SLOT_BYTES])
        count = int.from_bytes(slot[:8], byteorder)
        if count and slot[:8] == bytes(page[start : start + 8]):
            op, dtype, elements, in_stage = _SLOT_ANNOUNCED.unpack(slot[8:])
            place = in_stage - 1 - stage_count + len(stages)
            stage = stages[place] if 0 <= place < len(stages) else None
            operations.append(Operation(count - 1, _decode(op), _decode(dtype), elements, None, stage))
    return tuple(sorted(operations, key=lambda operation: operation.sequence))


def _read_stages(page: memoryview, stage_count: int) -> tuple[str, ...]:
    counts = range(max(1, stage_count - _STAGE_HISTORY_LENGTH + 1), stage_count + 1)
    return tuple(_decode(_STAGE_SLOT.unpack_from(page, _stage_slot(count))[1]) for count in counts)


def _stage_slot(count: int) -> int:
    """The offset in the page of the stage with that count, from 1."""
    return _STAGE_HISTORY_OFFSET + count % _STAGE_HISTORY_LENGTH * _STAGE_SLOT.size


def _read_operation(cells: memoryview, page: memoryview) -> Operation:
    predicted_ns = cells[_Cell.PREDICTED_NS]
    return Operation(
        sequence=cells[_Cell.ENTERED] - 1,
        op=_read_text(page, _OP_TEXT),
        dtype=_read_text(page, _DTYPE_TEXT),
        elements=cells[_Cell.ELEMENTS],
        predicted_seconds=predicted_ns / 1e9 if predicted_ns else None,
    )


def _read_text(page: memoryview, where: _Text) -> str:
    return _decode(bytes(page[where.offset : where.offset + where.size_bytes]))


def _decode(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
