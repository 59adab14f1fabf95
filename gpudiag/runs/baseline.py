"""What a run measured, as the history keeps it, to be the baseline of later runs."""

from collections.abc import Iterator

from gpudiag.model.active import metric_of
from gpudiag.model.history import Sample
from gpudiag.model.measure import Measures
from gpudiag.model.reading import Missing


def samples_of(measures: Measures) -> tuple[Sample, ...]:
    """Every speed in the measures, under a name that says how it was measured."""
    return (*_active_samples(measures), *_collective_samples(measures))


def _active_samples(measures: Measures) -> Iterator[Sample]:
    active = measures.active
    if isinstance(active, Missing):
        return
    on_gpu = active.device_kind == "cuda"
    for copy in active.bandwidth:
        if not copy.wrong_bytes:
            yield Sample(
                _metric(metric_of(copy), on_gpu),
                copy.bytes_per_second,
                "B/s",
                _uuid(copy.device_uuid),
                on_gpu,
            )
    for product in active.compute:
        yield Sample(
            _metric(metric_of(product), on_gpu), product.flops_per_second, "FLOP/s",
            _uuid(product.device_uuid), on_gpu,
        )  # fmt: skip


def _collective_samples(measures: Measures) -> Iterator[Sample]:
    """The largest size of each operation and dtype: small ones measure latency, which is noise here."""
    collective = measures.collective
    if isinstance(collective, Missing):
        return
    largest = {(result.op, result.dtype): result for result in collective.results}
    for result in largest.values():
        if isinstance(result.busbw_bytes_per_second, Missing) or result.verified is not True:
            continue
        place = f"{collective.backend}.{collective.world_size}"
        name = f"{result.op}.{result.dtype}.{result.size_bytes}.{place}.busbw"
        yield Sample(
            name, result.busbw_bytes_per_second, "B/s", None, judged=collective.device_kind == "cuda"
        )


def _metric(name: str, on_gpu: bool) -> str:
    return name if on_gpu else f"{name}.cpu"


def _uuid(uuid: str | Missing) -> str | None:
    return None if isinstance(uuid, Missing) else uuid
