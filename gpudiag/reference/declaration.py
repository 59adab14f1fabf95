"""The entries of the table of readings: how NVML is asked, how often, and how a reading is shown.

Plain classes: the child that asks NVML loads the table first, and fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

Form = (
    Literal["number", "positive", "running", "percent", "signed", "text", "switch", "flag"]
    | tuple[str | None, ...]
)
Tier = Literal["once", "fast", "prompt", "slow", "fixed"]
HistoryKind = Literal["mean", "last", "bits"]
MetricKind = Literal["gauge", "counter"]

COUNTER: MetricKind = "counter"


class Call:
    """A function of nvml.h about one GPU that returns the reading.

    `gives`: a number (not all ones, nor below 0), one that is not 0, one above 0 on every running GPU, a
    percentage, a number that may be below 0, a text, nvmlEnableState_t, a flag, or an enumeration's words.
    `per` divides. `place`: the member's name or number, where several readings share the call. `wide`: 64
    bits. `older`: for a driver that does not know the function.
    """

    __slots__ = ("arguments", "function", "gives", "older", "per", "place", "wide")

    def __init__(
        self,
        function: str,
        *arguments: int,
        gives: Form = "number",
        per: int = 1,
        place: int | str | None = None,
        wide: bool = False,
        older: Call | None = None,
    ) -> None:
        """Name the function and the arguments after the GPU's handle."""
        self.function = function
        self.arguments = arguments
        self.gives = gives
        self.per = per
        self.place = place
        self.wide = wide
        self.older = older


class Field:
    """A field of nvmlDeviceGetFieldValues (NVML_FI_DEV_...), asked in a batch; if silent, `otherwise`."""

    __slots__ = ("gives", "number", "otherwise", "per", "wide")

    def __init__(
        self,
        number: int,
        *,
        gives: Form = "number",
        per: int = 1,
        wide: bool = False,
        otherwise: Call | None = None,
    ) -> None:
        """Name the field by its number; the rest is as for a call."""
        self.number = number
        self.gives = gives
        self.per = per
        self.wide = wide
        self.otherwise = otherwise


class ByHand:
    """A function in `BY_HAND` of `probe.nvml.device` that fills in this reading and others; its fields."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, *fields: int) -> None:
        """Name the function, and the fields that it needs in the batch."""
        self.name = name
        self.fields = fields


class Activity:
    """A metric of NVML's GPM (NVML_GPM_METRIC_...): the mean between two looks, for Hopper and later.

    A single look has no answer. `per` multiplies: 2**20 for MiB.
    """

    __slots__ = ("number", "per")

    def __init__(self, number: int, *, per: int = 1) -> None:
        """Name the metric by its number."""
        self.number = number
        self.per = per


Question = Call | Field | ByHand | Activity


class Family:
    """A metric's name (without `gpudiag_gpu_` and `_total`), kind and help; `core`: in each scrape."""

    __slots__ = ("core", "kind", "name", "text")

    def __init__(self, name: str, text: str, kind: MetricKind = "gauge", *, core: bool = True) -> None:
        """Name the family."""
        self.name = name
        self.kind = kind
        self.text = text
        self.core = core


class Dcgm:
    """dcgm-exporter's name for the reading (after DCGM_FI_DEV_), its help sentence, unit in ours, and kind.

    A name that starts with `PROF_` stands after DCGM_FI_.
    """

    __slots__ = ("kind", "name", "scale", "text")

    def __init__(self, name: str, text: str, scale: float = 1.0, kind: MetricKind = "gauge") -> None:
        """Name the metric as etc/default-counters.csv of dcgm-exporter does."""
        self.name = name
        self.text = text
        self.scale = scale
        self.kind = kind

    @property
    def full_name(self) -> str:
        """The metric's whole name."""
        return f"DCGM_FI_{'' if self.name.startswith('PROF_') else 'DEV_'}{self.name}"


class Metric:
    """The reading as a sample of a family, in its unit, with labels; `rare`: in the full scrape alone."""

    __slots__ = ("dcgm", "family", "labels", "rare", "scale")

    def __init__(
        self,
        family: Family,
        scale: float = 1.0,
        labels: Mapping[str, str] | None = None,
        *,
        dcgm: Dcgm | None = None,
        rare: bool = False,
    ) -> None:
        """Name the family, and the names in other vocabularies."""
        self.family = family
        self.scale = scale
        self.labels = dict(labels or {})
        self.dcgm = dcgm
        self.rare = rare


class Fact:
    """The reading on the page of a GPU: the group, the label, and how it is written.

    `show` is a unit, or `bytes` (in GiB), `size` or `rate`, or a prefix that ends in `#`. A fact stands after
    those that are declared before it, unless it is the `first` of its group or stands `after` a reading that
    is named.
    """

    __slots__ = ("after", "first", "group", "label", "show")

    def __init__(
        self, group: str, label: str, show: str = "", *, after: str | None = None, first: bool = False
    ) -> None:
        """Name group and label."""
        self.group = group
        self.label = label
        self.show = show
        self.after = after
        self.first = first


class Declared:
    """One reading of a GPU, declared once: everything about it is made from this.

    `words` stand around its value in `gpudiag list --wide` (none: the block's head has it already). `called`
    is what a sentence calls the reading, where the words of the field's name would not be clear to a reader.
    `tier`: how often the service asks: once, on every tick (fast: what moves from second to second), every
    five seconds, whatever that costs and whoever looks (prompt: no event shows it, and jobs must stay away at
    once), every five seconds or more rarely where calls are dear (slow), or every minute (fixed: what changes
    only where a user changes it); without a question it does not come from NVML. `history` is how several
    samples become one that is remembered.
    """

    __slots__ = ("called", "fact", "history", "metric", "name", "question", "tier", "words")

    def __init__(
        self,
        name: str,
        words: str,
        question: Question | None,
        tier: Tier = "slow",
        *,
        called: str = "",
        history: HistoryKind | None = None,
        metric: Metric | None = None,
        fact: Fact | None = None,
    ) -> None:
        """Declare the field of that name of `model.device.Device` or `DeviceId`."""
        self.name = name
        self.words = words
        self.called = called
        self.question = question
        self.tier = tier
        self.history = history
        self.metric = metric
        self.fact = fact


def by_question(readings: Iterable[Declared]) -> list[tuple[Question, tuple[Declared, ...]]]:
    """Each question with the readings that it answers, in the order in which it is first declared."""
    groups: dict[object, tuple[Question, tuple[Declared, ...]]] = {}
    for declared in readings:
        question = declared.question
        if question is None:
            continue
        key: object = declared.name
        if isinstance(question, ByHand):
            key = question.name
        elif isinstance(question, Call) and question.place is not None:
            key = (question.function, question.arguments)
        first, together = groups.get(key, (question, ()))
        groups[key] = (first, (*together, declared))
    return list(groups.values())
