"""The text exposition format of Prometheus, written by hand: a client library takes ten times as long."""

from collections.abc import Iterable
from typing import Any

from gpudiag.model.reading import Missing, Reading
from gpudiag.render.style import one_line

Labels = dict[str, str]

_MAX_LABEL_CHARACTERS = 200


class Page:
    """Lines of the text exposition format; a repeated name is our error and is dropped."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: set[str] = set()

    def add(self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Add a metric with the labels and value of each sample; none without samples."""
        self.add_lines(
            name, kind, text, [f"{name}{braced(labels)} {number(value)}" for labels, value in samples]
        )

    def add_lines(self, name: str, kind: str, text: str, lines: list[str]) -> None:
        """Add a metric whose samples are rendered already."""
        if lines and name not in self._names:
            self._names.add(name)
            self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]

    def text(self) -> str:
        """The page: what a scrape gets."""
        return "\n".join(self._lines) + "\n"


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
    cleaned = one_line(word, _MAX_LABEL_CHARACTERS)
    return cleaned.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """The value as short as it can be written without loss."""
    return str(int(value)) if value == int(value) else repr(value)


def text_of(reading: Reading[Any]) -> str:
    """The reading as the value of a label; empty where it is missing, which Prometheus takes for no label."""
    return "" if isinstance(reading, Missing) else str(reading)
