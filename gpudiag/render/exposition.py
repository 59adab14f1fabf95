"""What Prometheus scrapes: its text format 0.0.4, and OpenMetrics 1.0 for those who ask for it.

Written by hand: a client library takes ten times as long. Both have the same series. OpenMetrics has units,
`info`, and counters without `_total`; a counter without it, as dcgm-exporter's, is `unknown`. There is no
`stateset`, whose label would differ between the formats.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from gpudiag.model.reading import Missing, Reading
from gpudiag.render.style import one_line

Labels = dict[str, str]

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MAX_LABEL_CHARACTERS = 200  # more are cut
_DECIMALS = 9  # of a ratio that comes of a percentage; more are noise of the division
_TOTAL, _INFO = "_total", "_info"
_UNITS = ("bytes", "celsius", "hertz", "joules", "ratio", "seconds", "watts")


class Page:
    """Lines of a scrape; a repeated name is our error and is dropped."""

    def __init__(self, *, openmetrics: bool = False) -> None:
        """Start empty."""
        self._openmetrics = openmetrics
        self._lines: list[str] = []
        self._names: set[str] = set()

    def add(self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Add a metric with the labels and value of each sample; none without samples."""
        self.add_lines(
            name, kind, text, [f"{name}{braced(labels)} {number(value)}" for labels, value in samples]
        )

    def add_lines(self, name: str, kind: str, text: str, lines: Sequence[str]) -> None:
        """Add a metric whose samples are rendered already; `kind` is gauge, counter or info."""
        if not lines or name in self._names:
            return
        self._names.add(name)
        head = _openmetrics_head if self._openmetrics else _text_head
        self._lines += [*head(name, kind, text), *lines]

    def text(self) -> str:
        """The page: what a scrape gets."""
        return "\n".join([*self._lines, "# EOF"] if self._openmetrics else self._lines) + "\n"


def _text_head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {'gauge' if kind == 'info' else kind}"]


def _openmetrics_head(name: str, kind: str, text: str) -> list[str]:
    """The lines about a metric, under the name that its samples have without the suffix of their kind."""
    suffix = {"counter": _TOTAL, "info": _INFO}.get(kind, "")
    if not name.endswith(suffix):
        kind = "unknown"
    family = name.removesuffix(suffix)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    lines = [f"# TYPE {family} {kind}", f"# HELP {family} {escaped}"]
    unit = family.rpartition("_")[2]
    if unit in _UNITS and "_per_" not in family:
        lines.insert(1, f"# UNIT {family} {unit}")
    return lines


def more(labels: Labels) -> str:
    """Labels that follow others; names and words are ours."""
    return "".join(f',{name}="{word}"' for name, word in labels.items())


def braced(labels: Labels) -> str:
    """The labels of a sample in braces; nothing without labels."""
    return f"{{{joined(labels)}}}" if labels else ""


def joined(labels: Labels) -> str:
    """The labels as `name="word"`, with commas between."""
    return ",".join(f'{name}="{escape(word)}"' for name, word in labels.items())


def escape(word: str) -> str:
    """The text with backslash, quote and line end escaped for the text exposition format."""
    if word.isalnum():
        return word
    cleaned = one_line(word, MAX_LABEL_CHARACTERS)
    return cleaned.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """The value as short as it can be written."""
    return str(int(value)) if value == int(value) else repr(round(value, _DECIMALS))


def text_of(reading: Reading[Any]) -> str:
    """The reading as the value of a label; empty where it is missing, which Prometheus takes for no label."""
    return "" if isinstance(reading, Missing) else str(reading)
