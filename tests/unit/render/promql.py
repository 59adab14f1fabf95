"""As much of PromQL as it takes to ask whether an expression's selectors find a series.

Grafana's variables stand for anything. What a scrape configuration adds (the instance, a cloud's names) is
there, and `exported_pod` is the pod label of a target that Prometheus has renamed beside its own.
"""

import re
from dataclasses import dataclass

_SELECTOR = re.compile(r"\b((?:DCGM_FI|DCGM_EXP|gpudiag)_\w+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
_VARIABLE = re.compile(r"\$\{?\w+(?::\w+)?\}?")
_EXPORTED = "exported_"
# Labels of the target: what a scrape configuration or the monitoring system gives.
_OF_TARGETS = frozenset(
    (
        "instance",
        "job",
        "node",
        "cluster",
        "cluster_name",
        "instance_shape",
        "oci_name",
        "service",
        "slurm_nodeset_name",
    )
)


@dataclass(frozen=True, slots=True)
class Selector:
    """The name of a metric, and what its labels must be: label, operator, pattern."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def finds(self, name: str, labels: dict[str, str]) -> bool:
        """Whether a series of that name with these labels is one that the selector selects."""
        return name == self.name and all(_matches(matcher, labels) for matcher in self.matchers)


def selectors_of(expression: str) -> list[Selector]:
    """The selectors of gpudiag's and dcgm-exporter's metrics in the expression."""
    return [
        Selector(name, tuple(_MATCHER.findall(matchers or "")))
        for name, matchers in _SELECTOR.findall(expression)
    ]


def fill_variables(expression: str) -> str:
    """The expression as Grafana would send it, with every variable set to all there is."""
    ranged = re.sub(r"\[\$\w+(:?)", r"[5m\1", expression)
    return re.sub(
        r'(=~|=)(\s*)"([^"]*\$[^"]*)"', lambda found: f'=~{found[2]}"{_VARIABLE.sub(".*", found[3])}"', ranged
    )


def _matches(matcher: tuple[str, str, str], labels: dict[str, str]) -> bool:
    label, operator, pattern = matcher
    if label in _OF_TARGETS:
        return True
    word = labels.get(label.removeprefix(_EXPORTED), "")
    if operator in ("=~", "!~"):
        return (re.fullmatch(pattern, word) is not None) is (operator == "=~")
    return (word == pattern) is (operator == "=")
