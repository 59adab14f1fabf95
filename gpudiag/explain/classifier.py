"""What lines of one shape may show: the lines of a log that differ only in their numbers are looked at once.

A log may be of millions of lines, each like no other. So a line is taken apart into words, of which most are
known, and only words that hold four letters of a pattern have the pattern tried on the line.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gpudiag.explain.launcher_lines import LAUNCHER_MARK, LAUNCHER_WORDS
from gpudiag.reference.failures import Failure, Pattern, failures

Candidates = tuple[tuple[Failure, Pattern], ...]

RAISED_MARK = re.compile(
    rb"Traceback \(most recent|Exception ignored|The above exception was|During handling of the above|"
    rb"(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Expired|Group|Refused|Invalid)(?::|$|\r| \()|Xid \("
)
ERROR_MARK = re.compile(
    rb"[Ee]rror|ERROR|[Ff]atal|FATAL|what\(\)|ssertion|[Pp]anic|No such file|denied|not found|"
    rb"terminate called|egmentation|curl:|Aborted|BUG: |"
    rb"\s[EF]  \]"  # Ray's level of an error, in a line without its digits
)
DOUBT_MARK = re.compile(rb"ailed\b|FAILED|imed out|xceeded|borting|UNAVAILABLE|revoked")
# A part of every line that one of these finds: four letters of it without a space are its key.
_RAISED_PARTS = tuple(
    b"""
    Traceback ignored above handling Error Exception Interrupt Exit Failure Timeout Expired Group
    Refused Invalid
    """.split()
)
_ERROR_PARTS = tuple(
    b"""
    rror ERROR atal FATAL what() ssertion anic such denied found terminate egmentation curl: Aborted
    BUG: .cc:
    """.split()
)
_DOUBT_PARTS = (b"ailed", b"FAILED", b"imed", b"xceeded", b"borting", b"UNAVAILABLE", b"revoked")
# A mark of fewer letters in one word.
_RAISED_SHORT = b"Xid ("
_PROGRESS_MARKS = (
    *(b"loss", b"Init COMPLETE", b"HTTP/", b"omplete", b"inished", b"samples/s", b"tokens/s", b"step"),
    *(b"epoch", b"Epoch"),
    *(b"Out of bounds values", b"fired up", b"unstuck"),
    *(b"train_runtime", b"raining is done", b"raining done", b"Trainer.fit` stopped"),
    *(b"exiting program after", b"inal validation metrics"),
)
_DIGITS = b"0123456789"
_HEXADECIMAL = re.compile(rb"0x[0-9a-f]*")
_GRAM = 4  # letters of a pattern's part that serve as its key
_FREQUENT = b"etaoinsrlhdcu"
_IN_MOST_ERRORS = frozenset(
    (b"fail", b"aile", b"iled", b"with", b"from", b"work", b"erro", b"rror", b"coul", b"ould")
)
_MAX_SHAPES = 50_000  # of lines, that are remembered
_MAX_WORDS = 20_000  # that are remembered
_NONE: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class LineKind:
    """What lines that differ only in digits may show."""

    candidates: Candidates  # the failures whose patterns may match
    is_raised: bool  # a traceback, an exception or an Xid
    is_of_ranks: bool  # of launchers and watchdogs, about ranks
    is_error: bool
    is_progress: bool
    is_doubtful: bool  # it may report a failure, in words that healthy runs print too


@dataclass(frozen=True, slots=True)
class _Index:
    """By four letters what may stand in a line that has them."""

    stems: dict[bytes, tuple[tuple[bytes, Candidates], ...]]
    raised: frozenset[bytes]
    errors: frozenset[bytes]
    doubts: frozenset[bytes]
    # Words of such lines; those without four letters under None.
    of_ranks: dict[bytes | None, tuple[bytes, ...]]
    progress: frozenset[bytes]
    order: dict[bytes, int]  # of the stems, as their failures are declared
    keys: frozenset[bytes]  # all of them
    unkeyed: tuple[tuple[bytes, Candidates], ...]  # parts without four letters in one word


class Classifier:
    """Finds what a line may show, and caches the words that it has seen."""

    def __init__(self) -> None:
        self._index = _index()
        self._words: dict[bytes, frozenset[bytes]] = {}
        self._plans: dict[frozenset[bytes], _Plan] = {}
        self.shapes: dict[bytes, LineKind] = {}  # the kinds of lines that were seen
        self.of_nccl: dict[bytes, LineKind] = {}  # and of NCCL's INFO lines, of which less is read

    def classify(self, shape: bytes) -> LineKind:
        """What lines of this shape may show."""
        known = self._words
        keys = _NONE
        for word in shape.split():
            found = known.get(word)
            if found is None:
                found = _keys_of(word, self._index.keys)
                if len(known) < _MAX_WORDS:
                    known[word] = found
            if found:
                keys = keys | found if keys else found
        plan = self._plans.get(keys)
        if plan is None:
            plan = _plan_of(keys, self._index)
            if len(self._plans) < _MAX_WORDS:
                self._plans[keys] = plan
        candidates = tuple([entry for stem, entries in plan.stems if stem in shape for entry in entries])
        return LineKind(
            candidates,
            is_raised=(plan.raised or _RAISED_SHORT in shape) and RAISED_MARK.search(shape) is not None,
            is_of_ranks=any([word in shape for word in plan.of_ranks])
            and LAUNCHER_MARK.search(shape) is not None,
            is_error=plan.errors and ERROR_MARK.search(shape) is not None,
            is_progress=plan.progress and any([mark in shape for mark in _PROGRESS_MARKS]),
            is_doubtful=plan.doubts and DOUBT_MARK.search(shape) is not None,
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is looked for in lines whose words have the same keys."""

    stems: tuple[tuple[bytes, Candidates], ...]
    raised: bool
    of_ranks: tuple[bytes, ...]  # the words, of which such a line holds one
    errors: bool
    doubts: bool
    progress: bool


def _plan_of(keys: frozenset[bytes], index: _Index) -> _Plan:
    stems = [entry for key in keys if key in index.stems for entry in index.stems[key]]
    stems.sort(key=lambda entry: index.order[entry[0]])  # as they are declared: a set has no order
    return _Plan(
        (*stems, *index.unkeyed),
        raised=not index.raised.isdisjoint(keys),
        of_ranks=tuple([word for key in (*keys, None) for word in index.of_ranks.get(key, ())]),
        errors=not index.errors.isdisjoint(keys),
        doubts=not index.doubts.isdisjoint(keys),
        progress=not index.progress.isdisjoint(keys),
    )


def remember(shapes: dict[bytes, LineKind], shape: bytes, kind: LineKind) -> None:
    """Keep what a shape of lines may show; where there are too many, the older half of them is dropped."""
    if len(shapes) >= _MAX_SHAPES:
        for old in [*shapes][: _MAX_SHAPES // 2]:
            del shapes[old]
    shapes[shape] = kind


def shape_of(line: bytes) -> bytes:
    """The line without its numbers: lines of one shape may show the same failure."""
    return (_HEXADECIMAL.sub(b"", line) if b"0x" in line else line).translate(None, _DIGITS)


def _keys_of(word: bytes, keys: frozenset[bytes]) -> frozenset[bytes]:
    if len(word) < _GRAM:
        return _NONE
    return keys.intersection([word[place : place + _GRAM] for place in range(len(word) - _GRAM + 1)])


@cache
def _index() -> _Index:
    by_stem: dict[bytes, list[tuple[Failure, Pattern]]] = {}
    for failure in failures().values():
        for pattern in failure.patterns:
            by_stem.setdefault(shape_of(pattern.part.encode()), []).append((failure, pattern))
    stems: dict[bytes, list[tuple[bytes, Candidates]]] = {}
    unkeyed: list[tuple[bytes, Candidates]] = []
    for stem, entries in by_stem.items():
        key = _rarest_key(stem)
        (unkeyed if key is None else stems.setdefault(key, [])).append((stem, tuple(entries)))
    of_ranks: dict[bytes | None, tuple[bytes, ...]] = {}
    for word in LAUNCHER_WORDS:
        key = _rarest_key(word.encode())
        of_ranks[key] = (*of_ranks.get(key, ()), word.encode())
    raised, errors, doubts, progress = (
        _keys(parts) for parts in (_RAISED_PARTS, _ERROR_PARTS, _DOUBT_PARTS, _PROGRESS_MARKS)
    )
    keys = frozenset(stems).union(raised, errors, doubts, filter(None, of_ranks), progress)
    order = {stem: place for place, stem in enumerate(by_stem)}
    by_key = {key: tuple(entries) for key, entries in stems.items()}
    return _Index(by_key, raised, errors, doubts, of_ranks, progress, order, keys, tuple(unkeyed))


def _keys(parts: Iterable[bytes]) -> frozenset[bytes]:
    found = {part: _rarest_key(part) for part in parts}
    return frozenset(key for key in found.values() if key is not None)


def _rarest_key(part: bytes) -> bytes | None:
    """The rarest 4-gram within one word; None if every word is shorter."""
    grams = [part[place : place + _GRAM] for place in range(len(part) - _GRAM + 1)]
    within = [gram for gram in grams if len(gram.split()) == 1 and gram == gram.strip()]
    return min(
        within,
        key=lambda gram: (gram in _IN_MOST_ERRORS, sum(letter in _FREQUENT for letter in gram)),
        default=None,
    )
