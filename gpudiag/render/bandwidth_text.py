"""A bandwidth run as text: a line for each copy and matrix product, then the report about them."""

from gpudiag.checks.ranks.measured_speeds import seen_meanwhile
from gpudiag.model.active import ActiveMeasurement, BandwidthResult, ComputeResult
from gpudiag.model.device import Snapshot
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.report import Report
from gpudiag.reference.vocabulary import SHORT_REASONS
from gpudiag.render.report_text import render_report_text
from gpudiag.render.style import PLAIN, Column, Style, render_table, wrapped
from gpudiag.units import BYTES_PER_GB, format_seconds, format_size, significant

_COPIES = (
    Column("COPY"),
    Column("WHERE", gives_way=True),
    Column("SIZE", right=True),
    Column("p50", right=True),
    Column("GB/s", right=True),
    Column("best", right=True),
    Column("wrong", right=True),
)
_PRODUCTS = (
    Column("PRODUCT"),
    Column("WHERE", gives_way=True),
    Column("N x N", right=True),
    Column("p50", right=True),
    Column("TFLOP/s", right=True),
    Column("best", right=True),
    Column("DURING"),
)


def render_bandwidth(report: Report, style: Style = PLAIN) -> str:
    """The report: verdict, tables of measurements, what the verdict rests on.

    It has at most 80 columns where words allow.
    """
    active = report.measures.active
    tables = [] if isinstance(active, Missing) else _tables(active, report.snapshot, style)
    verdict, gap, rest = render_report_text(report, style).partition("\n\n")
    return "\n".join([verdict, "", *tables, rest]) if gap else verdict


def _tables(active: ActiveMeasurement, snapshot: Snapshot, style: Style) -> list[str]:
    kind = "GPU" if active.device_kind == "cuda" else "CPU rank"
    version = "" if isinstance(active.torch_version, Missing) else f", torch {active.torch_version}"
    lines = [f"Measured: {active.world_size} {kind}{'s' * (active.world_size > 1)}{version}"]
    tests = list(dict.fromkeys(result.test for result in active.bandwidth))
    ordered = sorted(active.bandwidth, key=lambda result: (tests.index(result.test), result.rank))
    copies = [_copy(result, snapshot) for result in ordered]
    dtypes = list(dict.fromkeys(result.dtype for result in active.compute))
    in_order = sorted(active.compute, key=lambda result: (dtypes.index(result.dtype), result.rank))
    products = [_product(result, snapshot, active) for result in in_order]
    # A CPU has no readings during a product.
    shown = len(_PRODUCTS) if any(row[-1] for row in products) else -1
    for columns, rows in ((_COPIES, copies), (_PRODUCTS[:shown], [row[:shown] for row in products])):
        if rows:
            heading, *body = render_table(columns, rows)
            lines += ["", style.paint(heading, "bold"), *body]
    absent = dict.fromkeys(f"No {one.dtype} products: {one.reason}." for one in active.absent_products)
    for words in absent:
        lines += wrapped(words, indent="  ")
    return [*lines, ""]


def _copy(result: BandwidthResult, snapshot: Snapshot) -> list[str]:
    where = _place(snapshot, result.rank, result.device_uuid)
    if not isinstance(result.peer, Missing):
        where = f"{where} to {_place(snapshot, result.peer, result.peer_uuid)}"
    return [
        f"{result.test.replace('_', ' ')}{', all at once' if result.concurrent else ''}",
        where,
        format_size(result.size_bytes),
        format_seconds(result.time_p50_seconds),
        significant(result.bytes_per_second / BYTES_PER_GB),
        significant(_best(result.bytes_per_second, result) / BYTES_PER_GB),
        str(result.wrong_bytes),
    ]


def _product(result: ComputeResult, snapshot: Snapshot, active: ActiveMeasurement) -> list[str]:
    return [
        result.dtype,
        _place(snapshot, result.rank, result.device_uuid),
        str(result.size),
        format_seconds(result.time_p50_seconds),
        significant(result.flops_per_second / 1e12),
        significant(_best(result.flops_per_second, result) / 1e12),
        describe_meanwhile(result, active),
    ]


def _best(at_median: float, result: BandwidthResult | ComputeResult) -> float:
    """The speed of the best burst: far above the median where the GPU slowed down to what it sustains."""
    return at_median * result.time_p50_seconds / result.time_best_seconds


def describe_meanwhile(result: BandwidthResult | ComputeResult, active: ActiveMeasurement) -> str:
    """What the GPU did: `1500 MHz 720 W power cap`; empty where NVML was not read."""
    seen = seen_meanwhile(active, result)
    if seen is None:
        return ""
    words = []
    if not isinstance(seen.sm_clock_mhz, Missing):
        words.append(f"{seen.sm_clock_mhz:.0f} MHz")
    if not isinstance(seen.power_draw_watts, Missing):
        words.append(f"{seen.power_draw_watts:.0f} W")
    if not isinstance(seen.clocks_event_reasons, Missing):
        words += dict.fromkeys(SHORT_REASONS.get(reason, reason) for reason in seen.clocks_event_reasons)
    return " ".join(words)


def _place(snapshot: Snapshot, rank: int, uuid: Reading[str]) -> str:
    """The GPU as NVML numbers it; on the CPU, the rank."""
    for device in snapshot.devices:
        if device.id.uuid == uuid and not isinstance(device.id.nvml_index, Missing):
            return f"GPU {device.id.nvml_index}"
    return f"rank {rank}"
