"""Expressions of public boards and rules in dcgm-exporter's names: every selector finds series, or the reason
is known.

`benchmarks/public_expressions.py` has a real Prometheus evaluate them.
"""

from pathlib import Path

from gpudiag.model.owners import GpuOwners, JobUse, PodUse
from gpudiag.render.metrics_dcgm import render_dcgm
from tests.unit.render.promql import fill_variables, selectors_of
from tests.unit.render.simulated_snapshots import simulated_snapshot
from tests.unit.render.test_metric_formats import parse_text
from tests.walking import walk

EXPRESSIONS = Path(__file__).parents[2] / "corpus" / "metrics" / "public_expressions.tsv"
ROWS = [tuple(line.split("\t")) for line in EXPRESSIONS.read_text().splitlines() if not line.startswith("#")]


def series() -> list[tuple[str, dict[str, str]]]:
    """What a scrape of two busy machines holds: eight GPUs in pods and jobs, and one that is cut into MIG
    instances.
    """
    found = []
    for spec in ("h100x8+busy:0", "h100-mig+busy:0"):
        snapshot = simulated_snapshot(spec)
        owners = {str(device.id.uuid): OWNED for device in snapshot.devices[:4]}
        page = render_dcgm(snapshot, owners=owners, host_label="both")
        found += [(name, dict(labels)) for name, labels in parse_text(page)]
    return found


OWNED = GpuOwners(
    pods=(PodUse("ml", "train-0", "trainer"), PodUse("ml", "serve-0", "server", gpu_instance_id=2)),
    jobs=(JobUse(4711, "ann"),),
)
SERIES = series()


def test_there_are_many_from_many_places() -> None:
    assert len(ROWS) >= 80
    assert len({source.partition(":")[0] for _, source, _ in ROWS}) >= 8
    assert len({expression for expression, _, _ in ROWS}) == len(ROWS)
    assert sum(not why for _, _, why in ROWS) > 0.9 * len(ROWS)


@walk(ROWS, lambda row: row[0][:100])
def test_each_finds_series_or_has_a_reason(row: tuple[str, str, str]) -> None:
    expression, _source, why = row
    selectors = selectors_of(fill_variables(expression))
    assert selectors
    blind = [one.name for one in selectors if not any(one.finds(name, labels) for name, labels in SERIES)]
    if why:
        assert blind, "it has data: take the reason out of the list"
    else:
        assert not blind
