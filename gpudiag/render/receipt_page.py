"""A receipt as one page of HTML that needs nothing beside it, prints well, and holds the document itself.

No script runs in it. Text from outside is escaped; the document stands in an element that a browser shows
nothing of.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from gpudiag.checks.ranks.compute import first_and_last
from gpudiag.model.active import ActiveMeasurement, SustainedResult
from gpudiag.model.evidence import DeviceSubject, LinkSubject, RankSubject, Subject
from gpudiag.model.finding import CheckResult, JoinedFinding, MeasuredSpeed, Outcome
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.receipt import NO_DIGEST, Receipt
from gpudiag.model.report import Report
from gpudiag.model.untrusted_text import mask_text
from gpudiag.reference.reading_names import explain_missing
from gpudiag.render.joined_findings import join_findings
from gpudiag.render.receipt_style import CSS
from gpudiag.render.report_words import (
    coverage,
    describe_machine,
    describe_owners,
    describe_reason,
    faults_worst_first,
)
from gpudiag.render.sealed import PAGE_HEAD, embed, seal
from gpudiag.render.style import one_line
from gpudiag.units import BYTES_PER_GB, format_rate, format_seconds, format_size, significant

_FLOPS_PER_TFLOP = 1e12
_WORDS = {None: "", Outcome.PASS: "", Outcome.WARN: " ▼", Outcome.FAIL: " ▼▼"}
_LIMIT_CHARACTERS = 200
_MOST_COLUMNS = 16  # of a matrix of GPUs; wider ones are listed


def render_receipt_page(receipt: Receipt, document: str, digest: str) -> str:
    """The page of that receipt, with its document and its own digest; `digest` is the document's."""
    report = receipt.report
    title = f"{report.verdict.value.upper()} {_text(report.snapshot.host)}: gpudiag receipt"
    parts = (
        f'{PAGE_HEAD}{NO_DIGEST}">',
        '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{CSS}</style></head>",
        "<body><main>",
        *_head(receipt),
        *_findings(report),
        *_parts(receipt),
        *_versions(receipt),
        *_speeds(receipt),
        *_data(report),
        *_load(report),
        *_skipped(report),
        *_looked_at(receipt),
        *_verification(digest),
        "</main>",
        embed(document),
        "</body></html>",
    )
    return seal("\n".join(part for part in parts if part) + "\n")


# --- pieces


def _text(words: object) -> str:
    """What anyone wrote, on one line and without secrets, as text of a page."""
    return escape(mask_text(one_line(str(words))))


def _reading(value: Reading[object]) -> str:
    if isinstance(value, Missing):
        return f'<span class="missing">not read: {_text(explain_missing(value))}</span>'
    return _text(value)


def _section(title: str, *lines: str, note: str = "") -> Iterator[str]:
    yield f"<section><h2>{title}</h2>"
    if note:
        yield f'<p class="note">{note}</p>'
    yield from lines
    yield "</section>"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of cells that are HTML already; one that starts with `<td` brings its own element."""
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = "".join(
        f"<tr>{''.join(cell if cell.startswith('<td') else f'<td>{cell}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return (
        '<div class="wide"><table'
        f' class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _word(outcome: Outcome) -> str:
    return f'<span class="{outcome.value}">{outcome.value.upper()}</span>'


# --- the verdict


def _head(receipt: Receipt) -> Iterator[str]:
    report = receipt.report
    covered = coverage(report)
    simulated = describe_machine(report)
    yield f'<header class="{report.verdict.value}"><p class="kind">gpudiag receipt</p>'
    yield f"<h1>{_word(report.verdict)} {_text(report.snapshot.host)}</h1>"
    if simulated:
        yield f'<p class="simulated">{_text(simulated)}: no real GPU was tested</p>'
    facts = (
        ("measured", f"{report.snapshot.taken_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("issued", f"{receipt.issued_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("level", receipt.level),
        ("checks", covered.sentence()),
        ("command", receipt.command),
    )
    yield (
        "<dl>"
        + "".join(f"<dt>{name}</dt><dd>{_text(value)}</dd>" for name, value in facts)
        + "</dl></header>"
    )


def _findings(report: Report) -> Iterator[str]:
    joined = join_findings(faults_worst_first(report))
    lines = [line for one in joined for line in _finding(one)]
    yield from _section("Findings", *(lines or ["<p>None.</p>"]))


def _finding(joined: JoinedFinding) -> Iterator[str]:
    finding = joined.finding
    yield (
        f'<article class="finding"><h3>{_word(finding.outcome)}'
        f" {_text(joined.subject)}: {_text(joined.message)}</h3>"
    )
    yield f'<p class="note">{_text(finding.code)}; {_text(describe_owners((finding,)))} must act</p>'
    facts = "".join(f"<li>{_text(fact)}</li>" for fact in joined.facts)
    yield f"<ul>{facts}</ul><p>Do: {_text(joined.remedy)}</p></article>"


# --- what was tested


def _parts(receipt: Receipt) -> Iterator[str]:
    gpus = [
        (
            _text(part.name),
            *(_reading(value) for value in (part.model, part.serial, part.uuid, part.board, part.firmware)),
        )
        for part in receipt.parts
        if part.kind == "gpu"
    ]
    cards = [
        (_text(part.name), _reading(part.model), _reading(part.board))
        for part in receipt.parts
        if part.kind != "gpu"
    ]
    lines = []
    if gpus:
        lines.append(_table(("GPU", "model", "serial number", "UUID", "board", "VBIOS"), gpus, "parts"))
    if cards:
        lines.append(_table(("network card", "kind", "board"), cards))
    yield from _section("Parts", *(lines or ["<p>No GPU and no RDMA card is listed.</p>"]))


def _versions(receipt: Receipt) -> Iterator[str]:
    rows = [(_text(one.name), _reading(one.version)) for one in receipt.versions]
    yield from _section("Versions", _table(("software", "version"), rows))


# --- speeds


def _speeds(receipt: Receipt) -> Iterator[str]:
    links = [one for one in receipt.speeds if isinstance(one.subject, LinkSubject)]
    of_parts = [one for one in receipt.speeds if isinstance(one.subject, DeviceSubject | RankSubject)]
    others = [one for one in receipt.speeds if one not in links and one not in of_parts]
    note = (
        "“At least” is the limit that a speed was held against: the highest where there are several."
        " ▼ is below a limit, ▼▼ far below. Without a limit a speed is recorded and not judged."
    )
    lines = [*_speeds_of_parts(of_parts), *_matrix(links), *_speeds_of_all(others)]
    yield from _section(
        "Measured and expected", *(lines or ["<p>No speed was measured.</p>"]), note=note if lines else ""
    )


def _speeds_of_parts(speeds: Sequence[MeasuredSpeed]) -> Iterator[str]:
    places = list(dict.fromkeys(_place(one.subject) for one in speeds))
    if not places:
        return
    rows = []
    for name, group in groupby(speeds, key=lambda one: (one.name, one.unit)):
        of_test = list(group)
        by_place = {_place(one.subject): one for one in of_test}
        cells = [_value(by_place[place]) if place in by_place else "<td>-</td>" for place in places]
        rows.append((f"{_text(name[0])}, {_unit(name[1])}", *cells, *_limit(of_test)))
    yield _table(("test", *map(_text, places), "at least", "by"), rows, "numbers")


def _matrix(links: Sequence[MeasuredSpeed]) -> Iterator[str]:
    """From which GPU (rows) to which (columns); a list where there are many."""
    if not links:
        return
    ends = list(dict.fromkeys(end for one in links for end in _ends(one.subject)))
    if len(ends) > _MOST_COLUMNS:
        listed = [(_text(" to ".join(_ends(one.subject))), _value(one), *_limit([one])) for one in links]
        yield _table((f"copy, {_unit(links[0].unit)}", "measured", "at least", "by"), listed, "numbers")
        return
    by_ends = {_ends(one.subject): one for one in links}
    rows = [
        (
            _text(_short(source)),
            *(_value(by_ends[source, to]) if (source, to) in by_ends else "<td></td>" for to in ends),
        )
        for source in ends
    ]
    at_least, by = _limit(links)
    yield f"<h3>Copies from GPU (rows) to GPU (columns), {_unit(links[0].unit)}</h3>"
    yield _table(("from", *(_text(_short(end)) for end in ends)), rows, "numbers")
    yield f'<p class="note">At least {at_least}: {by}</p>' if by else '<p class="note">No limit is known.</p>'


def _speeds_of_all(speeds: Sequence[MeasuredSpeed]) -> Iterator[str]:
    rows = [(f"{_text(one.name)}, {_unit(one.unit)}", _value(one), *_limit([one])) for one in speeds]
    if rows:
        yield _table(("operation", "measured", "at least", "by"), rows, "numbers")


def _short(end: str) -> str:
    """`GPU 3` of `GPU 3 (86:00.0)`: the slots stand in the table of parts."""
    return end.partition(" (")[0]


def _ends(subject: Subject) -> tuple[str, str]:
    return subject.ends if isinstance(subject, LinkSubject) else ("", "")


def _place(subject: Subject) -> str:
    if isinstance(subject, RankSubject):
        return f"rank {subject.rank}"
    index = subject.nvml_index if isinstance(subject, DeviceSubject) else ""
    return "a GPU" if isinstance(index, Missing) else f"GPU {index}"


def _unit(unit: str) -> str:
    return {"B/s": "GB/s", "FLOP/s": "TFLOP/s"}.get(unit, unit)


def _scaled(value: object, unit: str) -> str:
    if isinstance(value, str) or not isinstance(value, int | float):
        return _text(value)
    return significant(value / {"B/s": BYTES_PER_GB, "FLOP/s": _FLOPS_PER_TFLOP}.get(unit, 1.0))


def _value(one: MeasuredSpeed) -> str:
    kind = "" if one.outcome is None else one.outcome.value
    return f'<td class="{kind}">{_scaled(one.value, one.unit)}{_WORDS.get(one.outcome, "")}</td>'


def _limit(speeds: Sequence[MeasuredSpeed]) -> tuple[str, str]:
    """The highest limit that these were held against, and where the limits come from."""
    facts = [fact for one in speeds for fact in one.held_against if isinstance(fact.limit, int | float)]
    if not facts:
        return "-", ""
    limits = [float(str(fact.limit)) for fact in facts]
    kinds = dict.fromkeys(fact.source.partition(":")[0] for fact in facts)
    highest = max(zip(limits, facts, strict=True), key=lambda one: one[0])[1]
    others = ", ".join(kind for kind in kinds if kind != highest.source.partition(":")[0])
    by = _text(highest.source) + (f"; also {_text(others)}" if others else "")
    return _scaled(max(limits), speeds[0].unit), by


# --- right data


def _data(report: Report) -> Iterator[str]:
    rows = [*_of_active(report), *_of_collectives(report), *_of_disks(report)]
    table = _table(("test", "how much", "wrong"), rows)
    yield from _section("Is the data right?", table if rows else "<p>No test compared data.</p>")


def _of_active(report: Report) -> Iterator[tuple[str, str, str]]:
    active = report.measures.active
    if isinstance(active, Missing):
        return
    if active.bandwidth:
        moved = sum(copy.size_bytes for copy in active.bandwidth)
        wrong = sum(copy.wrong_bytes for copy in active.bandwidth)
        yield (
            "copies, every byte compared",
            f"{len(active.bandwidth)} copies, {format_size(moved)}",
            f"{wrong} bytes",
        )
    for dtype in dict.fromkeys(one.dtype for one in active.determinism):
        of_dtype = [one for one in active.determinism if one.dtype == dtype]
        repeats = sum(one.repeats for one in of_dtype)
        chains = ", ".join(dict.fromkeys(one.chain for one in of_dtype))
        results = {
            (one.chain, one.device_name): {
                o.digest for o in of_dtype if (o.chain, o.device_name) == (one.chain, one.device_name)
            }
            for one in of_dtype
        }
        differing = sum(len(digests) - 1 for digests in results.values())
        deviating = sum(one.deviating for one in of_dtype)
        wrong_words = f"{deviating} repeats, {differing} devices"
        yield f"the same computation in {_text(dtype)} ({_text(chains)})", f"{repeats} times", wrong_words
    for pattern in sorted(active.patterns, key=lambda one: one.rank):
        where = _rank_place(report, pattern.rank)
        how_much = (
            f"{format_size(pattern.tested_bytes)} of {format_size(pattern.wanted_bytes)},"
            f" {len(pattern.patterns)} patterns"
        )
        yield f"memory patterns, {_text(where)}", how_much, f"{pattern.wrong_words} words"


def _of_collectives(report: Report) -> Iterator[tuple[str, str, str]]:
    named = (("all-reduce", report.measures.collective), ("every collective", report.measures.operations))
    for name, measured in named:
        if isinstance(measured, Missing):
            continue
        checked = [one for one in measured.results if one.verified is True or one.verified is False]
        wrong = sum(one.wrong_elements for one in checked if not isinstance(one.wrong_elements, Missing))
        operations = len({one.op for one in measured.results})
        how_much = (
            f"{len(checked)} of {measured.sizes_planned} sizes of {count_of(operations, 'operation')},"
            f" {measured.world_size} {_text(measured.backend)} ranks"
        )
        yield name, how_much, f"{wrong} elements"
    pairs = report.measures.card_pairs
    if not isinstance(pairs, Missing) and not isinstance(pairs.localisation, Missing):
        found = pairs.localisation
        usual = found.usual_bytes_per_second
        speed = "" if isinstance(usual, Missing) else f", usually {format_rate(usual)}"
        yield (
            "pairs of GPUs by their network cards",
            f"{found.links} pairs{speed}",
            f"{len(found.suspects)} stand out",
        )


def _of_disks(report: Report) -> Iterator[tuple[str, str, str]]:
    for disk in () if isinstance(report.measures.disks, Missing) else report.measures.disks:
        if isinstance(disk.write_bytes_per_second, Missing) or isinstance(
            disk.read_bytes_per_second, Missing
        ):
            yield (
                f"file in {_text(disk.path)}",
                f"not tested: {_text(disk.failure or 'no reason given')}",
                "-",
            )
            continue
        cached = "" if disk.direct else " (perhaps from memory)"
        speeds = (
            f"written at {format_rate(disk.write_bytes_per_second)}, read at"
            f" {format_rate(disk.read_bytes_per_second)}{cached}"
        )
        yield (
            f"file in {_text(disk.path)}",
            f"{format_size(disk.size_bytes)}, {speeds}",
            f"{disk.wrong_bytes} bytes",
        )


def _rank_place(report: Report, rank: int) -> str:
    """`GPU 3` for a rank, by its GPU's UUID; `rank 3` on a CPU."""
    active = report.measures.active
    uuids = {} if isinstance(active, Missing) else {one.rank: one.device_uuid for one in active.ranks}
    for device in report.snapshot.devices:
        if device.id.uuid == uuids.get(rank) and not isinstance(device.id.nvml_index, Missing):
            return f"GPU {device.id.nvml_index}"
    return f"rank {rank}"


# --- a sustained load


def _load(report: Report) -> Iterator[str]:
    active = report.measures.active
    if isinstance(active, Missing) or not active.sustained:
        return
    loads = sorted(active.sustained, key=lambda one: one.rank)
    rows = [_load_row(report, active, result) for result in loads]
    headings = ("", "under load", "first minute", "last minute", "change", "temperature", "slope at the end")
    lines = [_table(headings, rows, "numbers")]
    if any(not isinstance(point.temperature_celsius, Missing) for point in active.telemetry):
        lines.append(_temperatures(report, active))
    yield from _section("Under a sustained load", *lines)


def _load_row(report: Report, active: ActiveMeasurement, result: SustainedResult) -> tuple[str, ...]:
    from gpudiag.checks.ranks.compute import end_slope

    first, last = first_and_last(result)
    change = f"{last / first - 1:+.1%}" if first else "-"
    celsius = [
        float(at.temperature_celsius)
        for at in active.telemetry
        if at.device_uuid == result.device_uuid and not isinstance(at.temperature_celsius, Missing)
    ]
    heat = end_slope(active, result)
    return (
        _text(_rank_place(report, result.rank)),
        format_seconds(result.seconds),
        f"{significant(first / _FLOPS_PER_TFLOP)} TFLOP/s",
        f"{significant(last / _FLOPS_PER_TFLOP)} TFLOP/s",
        change,
        f"{min(celsius):.0f} to {max(celsius):.0f} °C" if celsius else "not read",
        f"{heat.celsius_per_minute:+.1f} °C/min" if heat else "not read",
    )


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 170, 34, 18
_DASHES = ("", "6 3", "2 3", "8 3 2 3")  # lines that differ on paper too


def _temperatures(report: Report, active: ActiveMeasurement) -> str:
    """Every GPU's temperature over the tests, as a drawing."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in active.telemetry:
        if not isinstance(point.temperature_celsius, Missing):
            lines.setdefault(point.device_uuid, []).append(
                (point.at_seconds, float(point.temperature_celsius))
            )
    times = [at for points in lines.values() for at, _ in points]
    degrees = [celsius for points in lines.values() for _, celsius in points]
    least, most, end = min(degrees) - 2, max(degrees) + 2, max(max(times), 1.0)

    def place(at: float, celsius: float) -> str:
        x = _LEFT + at / end * (_WIDTH - _LEFT - 4)
        y = 4 + (most - celsius) / (most - least) * (_HEIGHT - _BOTTOM - 8)
        return f"{x:.1f},{y:.1f}"

    drawn = "".join(
        f'<polyline class="line{number % 8}" stroke-dasharray="{_DASHES[number // 2 % 4]}"'
        f' points="{" ".join(place(*point) for point in _thinned(points))}"/>'
        for number, points in enumerate(lines.values())
    )
    floor = _HEIGHT - _BOTTOM
    axes = (
        f'<path class="axis" d="M{_LEFT} 4V{floor}H{_WIDTH}"/><text x="2" y="12">{most:.0f} °C</text><text'
        f' x="2" y="{floor}">{least:.0f} °C</text><text x="{_LEFT}" y="{_HEIGHT - 4}">0 s</text><text'
        f' x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">{end:.0f} s</text>'
    )
    title = f"Temperature of {count_of(len(lines), 'GPU')} while the tests ran"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{title}">{axes}{drawn}</svg><figcaption>{title}; the load is'
        " at the end.</figcaption></figure>"
    )


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most some hundred of them: a drawing shows no more."""
    return points[:: max(1, len(points) // 200)]


# --- what was looked at, and what was not


def _skipped(report: Report) -> Iterator[str]:
    covered = coverage(report)
    rows = [
        (_word(Outcome.ERROR), _text(", ".join(names)), _text(reason))
        for reason, names in covered.errors.items()
    ]
    rows += [
        (_word(Outcome.SKIP), _text(", ".join(names)), _text(reason))
        for reason, names in covered.skipped.items()
    ]
    table = _table(("", "checks", "why"), rows, "skipped")
    yield from _section("Skipped, and why", table if rows else "<p>Nothing.</p>")


def _looked_at(receipt: Receipt) -> Iterator[str]:
    described = {one.check: one for one in receipt.checks}
    rows = []
    for result in receipt.report.results:
        if result.outcome is Outcome.SKIP:
            continue
        one = described.get(result.check)
        title, limits = ("", ()) if one is None else (one.title, one.limits)
        rows.append((_word(result.outcome), _text(result.check), _text(title), _limits(limits, result)))
    left_out = (
        (
            f"{count_of(len(receipt.not_run), 'check')} not asked for by this level and its options:"
            f" {_text(', '.join(receipt.not_run))}."
        )
        if receipt.not_run
        else ""
    )
    yield from _section(
        "Looked at", _table(("", "check", "what must hold", "limit"), rows, "checks"), note=left_out
    )


def _limits(limits: Sequence[str], result: CheckResult) -> str:
    """What is held against what, as far as a table has room for it: the document has all."""
    words = escape(one_line("; ".join(limits), _LIMIT_CHARACTERS))
    return words if result.outcome is not Outcome.ERROR else f"no result: {_text(describe_reason(result))}"


def _verification(digest: str) -> Iterator[str]:
    """How anyone finds out whether a byte was changed, and who signed it."""
    yield from _section(
        "To verify this receipt",
        "<p>The page holds the receipt's JSON document whole; the files of both stand beside each other."
        " The digest of a file is the SHA-256 of all its bytes, with the 64 digits of the digest itself,"
        " in its first lines, as zeros.</p>",
        f"<p>Digest of the JSON document: <code>{_text(digest)}</code></p>",
        "<pre>gpudiag receipt FILE --signers allowed_signers\n"
        "ssh-keygen -Y verify -f allowed_signers -I WHO -n gpudiag-receipt -s FILE.sig &lt; FILE</pre>",
        "<p>A digest shows an accident. A change on purpose is found by the signature alone, where there is"
        " one: a file with the ending .sig beside this one.</p>",
    )
