"""What a hub says of machines on real sockets, that are well or not, lie, hang, are old, or have a wrong
clock.
"""

import asyncio
import contextlib
import json
import ssl
import time
from dataclasses import replace

import pytest

from gpudiag.fleet import machine as machine_file
from gpudiag.fleet.addresses import MachineTokens
from gpudiag.fleet.discovery import parse_sources
from gpudiag.fleet.hub import HubWatch
from gpudiag.fleet.report import POLL, read_poll
from gpudiag.model.codec import dumps, encode
from gpudiag.model.hub import AnswerState, HubDocument
from gpudiag.render.metrics_hub import render_hub_metrics
from tests.fake_machines import FAILED, LIES, FakeMachine, machines_on_sockets

WITHIN_SECONDS = 60.0  # proves that it comes at all


async def watch_until(sources, reached, *, tls=None, then=None, viewers=1) -> HubWatch:
    """A hub's watch, run until `reached(document)`; `then` goes on with it while it runs."""
    watch = HubWatch(sources, tls, lambda _document, _text: None, lambda _event: None)
    watch.viewers = viewers
    task = asyncio.create_task(watch.run())
    try:
        await wait_for(watch, reached)
        if then is not None:
            await then(watch)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return watch


async def wait_for(watch: HubWatch, reached) -> None:
    until = time.monotonic() + WITHIN_SECONDS
    while watch.document is None or not reached(watch.document):
        assert time.monotonic() < until, watch.text
        await asyncio.sleep(0.05)


def look(fakes: list[FakeMachine], reached, tokens=None, *more: str, **options) -> HubDocument:
    """What a hub shows of those machines once `reached`."""
    texts = [*(fake.address for fake in fakes), *more]
    sources = parse_sources(texts, tokens or MachineTokens())
    return asyncio.run(watch_until(sources, reached, **options)).document


def all_asked(document: HubDocument) -> bool:
    return bool(document.machines) and all(one.state is not AnswerState.ASKED for one in document.machines)


def all_serials(document: HubDocument) -> bool:
    return all_asked(document) and "not_asked" not in json.dumps(encode(document)["machines"])


def row(document: HubDocument, fake: FakeMachine):
    return next(one for one in document.machines if one.name == fake.address)


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    """Limits that a test can wait for; none of them decides what is said."""
    monkeypatch.setattr(machine_file, "ANSWER_SECONDS", 1.5)
    monkeypatch.setattr(machine_file, "WATCHED_SECONDS", 0.3)


def test_a_healthy_machine_is_shown_as_its_service_reports_it() -> None:
    with machines_on_sockets([FakeMachine("gpu1")]) as (fake,):
        document = look([fake], all_serials)
    one = row(document, fake)
    assert (one.state, one.verdict, one.reason, one.notes) == (AnswerState.ANSWERS, "pass", None, ())
    assert one.report.host == "gpu1"
    assert one.report.headline == "8 healthy"
    assert one.report.users == ("ann",)
    assert one.report.jobs == ("slurm 4711",)
    assert one.report.lacks == ()
    assert one.report.gpus[3].serial == f"1650003{fake.port}"
    assert one.report.gpus[3].utilization_percent == 93
    assert document.counts.gpus == document.counts.healthy_gpus == 8
    assert one.page == f"http://{fake.address}/"


def test_worst_first_then_by_name() -> None:
    fakes = [
        FakeMachine("a"),
        FakeMachine("b", changes={"verdict": "warn"}),
        FakeMachine("c", kind="closed"),
        FakeMachine("d", changes=FAILED),
        FakeMachine("e", changes={"verdict": "error", "headline": "the numbers are old"}),
    ]
    with machines_on_sockets(fakes):
        document = look(fakes, all_asked)
    expected = [fakes[3], fakes[2], fakes[4], fakes[1], fakes[0]]
    assert [one.name for one in document.machines] == [fake.address for fake in expected]
    counts = document.counts
    assert (counts.passed, counts.warned, counts.failed, counts.unknown, counts.silent) == (1, 1, 1, 2, 1)
    worst = document.machines[0].report
    assert (worst.finding_count, worst.findings[0].code, worst.findings[0].blocks_jobs) == (
        2,
        "gpu.lost",
        True,
    )


BAD = {
    "hang": (AnswerState.SILENT, "no answer within"),
    "drip": (AnswerState.SILENT, "no answer within"),
    "closed": (AnswerState.SILENT, "the connection ended before the answer did"),
    "redirect": (AnswerState.REFUSED, "it redirects (HTTP 302), which is not followed"),
    "huge": (AnswerState.UNREADABLE, "its answer is larger than 2 MiB"),
    "endless": (AnswerState.UNREADABLE, "its answer is larger than 2 MiB"),
    "gzip": (AnswerState.UNREADABLE, "its answer is compressed, which was not asked for"),
    "status:401": (AnswerState.REFUSED, "it wants a token, or another one"),
    "status:404": (AnswerState.REFUSED, "there is no gpudiag service at this address"),
    "status:503": (AnswerState.REFUSED, "it is starting, and has no data yet"),
    "status:500": (AnswerState.REFUSED, "it answered with HTTP 500"),
    "lie:no JSON": (AnswerState.UNREADABLE, "its answer is no JSON"),
    "lie:a list": (AnswerState.UNREADABLE, "its answer is JSON, and no document of gpudiag"),
    "lie:no schema": (AnswerState.UNREADABLE, "its answer is JSON, and no document of gpudiag"),
    "lie:another document": (
        AnswerState.UNREADABLE,
        "it answers with gpudiag.report/1, not with gpudiag.poll/1",
    ),
    "lie:a number in place of a text": (AnswerState.UNREADABLE, "its last_id is 7"),
    "lie:nested without end": (AnswerState.UNREADABLE, "its answer is no JSON"),
    "lie:not a number": (AnswerState.UNREADABLE, "its answer is no JSON"),
}


def test_machines_that_hang_or_lie_are_named_and_cost_the_others_nothing() -> None:
    assert {f"lie:{name}" for name in LIES} <= set(BAD)
    bad = [FakeMachine(kind, kind=kind) for kind in BAD]
    good = [FakeMachine(f"good{number}") for number in range(3)]
    with machines_on_sockets([*bad, *good]):
        document = look([*bad, *good], all_asked)
        polls = [sum(path.startswith("/api/v1/poll") for path, _ in fake.requests) for fake in (*bad, *good)]
    for fake, (state, words) in zip(bad, BAD.values(), strict=True):
        one = row(document, fake)
        assert (fake.kind, one.state, one.verdict) == (fake.kind, state, "error")
        assert words in one.reason, fake.kind
    assert [row(document, fake).verdict for fake in good] == ["pass"] * 3
    # The good ones were asked again while the slowest kept its first question; a bad one waits longer each
    # time.
    assert min(polls[-3:]) >= 2 * polls[list(BAD).index("hang")]


WRONG_FIELDS = {
    "devices": "its devices is {'a': 1}",
    "verdict": "its verdict is 'splendid', which is none",
    "at": "its at is no time",
    "finding_count": "its finding_count is True",
    "findings": "its findings holds what is no object",
    "headline": "its headline is 7",
}
WRONG_VALUES = {
    "devices": {"a": 1},
    "verdict": "splendid",
    "at": "soon",
    "finding_count": True,
    "findings": [1],
    "headline": 7,
}


def test_a_field_of_the_wrong_type_makes_the_report_unreadable_by_name() -> None:
    fakes = [FakeMachine(name, changes={name: WRONG_VALUES[name]}) for name in WRONG_FIELDS]
    schema = FakeMachine("newer", changes={"schema": "gpudiag.live/2"})
    row_lies = FakeMachine(
        "row", changes={"devices": [{"uuid": "GPU-1", "health": "ok", "utilization_percent": "all"}]}
    )
    many = FakeMachine("many", gpus=0, changes={"devices": [{"health": "ok"}] * 600})
    with machines_on_sockets([*fakes, schema, row_lies, many]):
        document = look([*fakes, schema, row_lies, many], all_asked)
    found = {fake.host: row(document, fake).reason for fake in fakes}
    assert found == WRONG_FIELDS
    assert (
        row(document, schema).reason
        == "it answers with gpudiag.live/2, and this gpudiag reads gpudiag.live/1: update the hub"
    )
    assert row(document, row_lies).reason == "devices[0].utilization_percent is 'all'"
    assert row(document, many).reason == "it lists 600 GPUs"


def test_an_older_version_is_shown_with_what_it_has() -> None:
    with machines_on_sockets([FakeMachine("old", kind="old")]) as (fake,):
        one = row(look([fake], all_asked), fake)
    assert (one.state, one.verdict) == (AnswerState.ANSWERS, "pass")
    assert one.report.gpus[0].utilization_percent == 90
    assert encode(one.report.gpus[0])["missing"]["power_draw_watts"] == "not_asked"
    (note,) = one.notes
    assert note.startswith("gpudiag 0.0.9 there is older than the hub's")
    assert "power_draw_watts" in note


def test_a_wrong_clock_is_named_by_the_date_header() -> None:
    fakes = [FakeMachine(f"gpu{number}") for number in range(3)]
    ahead, behind = FakeMachine("ahead", clock_seconds=3600), FakeMachine("behind", clock_seconds=-40)
    without = FakeMachine("without", has_date=False)
    with machines_on_sockets([*fakes, ahead, behind, without]):
        document = look([*fakes, ahead, behind, without], all_asked)
    assert row(document, ahead).notes == ("its clock is 60 min ahead of the hub's: check NTP on it",)
    assert row(document, ahead).verdict == "pass"
    assert "behind the hub's: check NTP on it" in row(document, behind).notes[0]
    assert row(document, behind).clock_offset_seconds == pytest.approx(-40, abs=2)
    assert row(document, without).clock_offset_seconds is None
    assert [row(document, fake).notes for fake in fakes] == [(), (), ()]
    assert document.notes == ()


def test_where_most_clocks_differ_alike_the_hubs_own_is_wrong() -> None:
    fakes = [FakeMachine(f"gpu{number}", clock_seconds=-600) for number in range(4)]
    with machines_on_sockets(fakes):
        document = look(fakes, lambda document: all_asked(document) and bool(document.notes))
    assert "this hub's own clock is 10 min ahead of most machines': check NTP" in document.notes[0]
    assert [one.notes for one in document.machines] == [()] * 4


def test_a_service_whose_report_stands_still_is_not_believed() -> None:
    with machines_on_sockets([FakeMachine("gpu1", kind="frozen")]) as (fake,):
        one = row(look([fake], all_asked), fake)
    assert (one.state, one.verdict) == (AnswerState.ANSWERS, "error")
    assert "old: its service answers, and reads nothing new" in one.notes[0]


def test_a_machine_under_two_names_is_named() -> None:
    with machines_on_sockets([FakeMachine("gpu1")]) as (fake,):
        other = f"localhost:{fake.port}"
        document = look([fake], all_asked, None, other)
    assert {note for one in document.machines for note in one.notes} == {
        f"it reports the same GPUs as {other}",
        f"it reports the same GPUs as {fake.address}",
    }


def test_a_machine_that_falls_silent_keeps_its_last_report_with_since_when_and_comes_back() -> None:
    async def story(watch: HubWatch) -> None:
        fake.kind = "closed"
        await wait_for(watch, lambda document: document.machines[0].state is AnswerState.SILENT)
        silent.append(watch.document.machines[0])
        fake.kind, fake.entries = "good", [{"kind": "xid", "message": "Xid 79 on GPU 5", "severity": "fail"}]
        await wait_for(watch, lambda document: document.machines[0].state is AnswerState.ANSWERS)
        events.extend(watch.events)

    silent, events = [], []
    with machines_on_sockets([FakeMachine("gpu1")]) as (fake,):
        sources = parse_sources([fake.address], MachineTokens())
        asyncio.run(watch_until(sources, all_asked, then=story))
    (one,) = silent
    assert one.verdict == "error"
    assert one.report.verdict == "pass"
    assert one.answered_at <= one.since
    assert [event.kind for event in events] == ["silent", "xid", "answers"]
    assert events[1].message == "Xid 79 on GPU 5"


def test_a_verdict_that_changes_is_an_event() -> None:
    async def story(watch: HubWatch) -> None:
        fake.changes = FAILED
        await wait_for(watch, lambda document: document.machines[0].verdict == "fail")
        events.extend(watch.events)

    events = []
    with machines_on_sockets([FakeMachine("gpu1")]) as (fake,):
        asyncio.run(watch_until(parse_sources([fake.address], MachineTokens()), all_asked, then=story))
    assert [(event.kind, event.message, event.severity) for event in events] == [
        ("verdict", "FAIL, was PASS: 7 healthy, 1 lost", "fail")
    ]


def test_a_severity_that_only_a_newer_version_knows_is_no_pass() -> None:
    entry = {"kind": "verdict", "message": "it melts", "severity": "melted"}
    answer = {"schema": f"{POLL}1", "last_id": "5", "events": [{"event": "event", "data": entry}]}
    assert read_poll(answer) == ("5", None, [("verdict", "it melts", "error")])


def test_each_machine_gets_its_own_token_and_nothing_else_of_the_hub() -> None:
    fakes = [FakeMachine("gpu1", token="a" * 20), FakeMachine("gpu2", token="b" * 20)]
    with machines_on_sockets(fakes):
        known = (*((fake.address, fake.token) for fake in fakes[:1]), ("*", "b" * 20))
        document = look(fakes, all_asked, MachineTokens(known))
    assert [one.verdict for one in document.machines] == ["pass", "pass"]
    for fake in fakes:
        assert {headers["authorization"] for _, headers in fake.requests} == {f"bearer {fake.token}"}
        assert {tuple(headers) for _, headers in fake.requests} == {
            ("host", "accept", "accept-encoding", "user-agent", "authorization", "gpudiag-viewers")
        }
    assert "a" * 20 not in dumps(document) + repr(document)


def test_questions_of_a_hub_that_nobody_looks_at_say_so() -> None:
    with machines_on_sockets([FakeMachine("gpu1")]) as (fake,):
        look([fake], all_asked, viewers=0)
        look([fake], all_asked, viewers=3)
    assert next(headers["gpudiag-viewers"] for path, headers in fake.requests if "poll" in path) == "0"
    assert fake.requests[-1][1]["gpudiag-viewers"] == "3"


def test_a_list_in_a_file_is_followed(tmp_path) -> None:
    listed = tmp_path / "machines.txt"

    async def story(watch: HubWatch) -> None:
        listed.write_text(f"{second.address}\n")
        await wait_for(watch, lambda document: [one.name for one in document.machines] == [second.address])
        listed.write_text("not an address!\n# broken while it is edited\n")
        await wait_for(watch, lambda document: bool(document.notes))
        assert [one.name for one in watch.document.machines] == [second.address]
        notes.extend(watch.document.notes)
        events.extend((event.kind, event.machine) for event in watch.events)

    notes, events = [], []
    with machines_on_sockets([FakeMachine("gpu1"), FakeMachine("gpu2")]) as (first, second):
        listed.write_text(f"# mine\n{first.address} name=rack1 page=https://gpus.example/1\n")
        sources = parse_sources([f"@{listed}"], MachineTokens())
        asyncio.run(watch_until(sources, all_asked, then=story))
    assert "cannot be read, and what it listed last is shown" in notes[0]
    assert events == [("unlisted", "rack1"), ("listed", second.address)]


def test_a_certificate_must_be_signed_by_the_authority_and_be_of_the_name(tmp_path, authority) -> None:
    certificate, key = authority
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with machines_on_sockets([FakeMachine("gpu1")], context) as (fake,):
        trusted = ssl.create_default_context(cafile=str(certificate))
        texts = [f"https://localhost:{fake.port}", f"https://127.0.0.1:{fake.port}"]
        sources = parse_sources(texts, MachineTokens())
        by_authority = asyncio.run(watch_until(sources, all_asked, tls=trusted)).document
        by_system = asyncio.run(watch_until(sources, all_asked)).document
    named, numeric = (next(one for one in by_authority.machines if one.name == text) for text in texts)
    assert (named.state, named.verdict) == (AnswerState.ANSWERS, "pass")
    assert numeric.state is AnswerState.SILENT
    assert "its certificate is not trusted" in numeric.reason
    assert all("its certificate is not trusted" in one.reason for one in by_system.machines)


@pytest.fixture
def authority(tmp_path):
    """A certificate for `localhost` that signs itself, and its key."""
    import subprocess

    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    more = [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*command, *more], check=True, capture_output=True)
    return certificate, key


def test_a_scrape_has_one_series_a_machine_and_no_metric_of_theirs() -> None:
    fakes = [FakeMachine("gpu1"), FakeMachine("gpu2", kind="closed"), FakeMachine("gpu3", changes=FAILED)]
    with machines_on_sockets(fakes):
        document = look(fakes, all_asked)
    text = render_hub_metrics(document)
    ups = {line for line in text.splitlines() if line.startswith("gpudiag_hub_machine_up{")}
    assert ups == {
        f'gpudiag_hub_machine_up{{machine="{fake.address}"}} {int(fake.kind == "good")}' for fake in fakes
    }
    assert f'gpudiag_hub_machine_verdict{{machine="{fakes[2].address}",verdict="fail"}} 1' in text
    assert f'gpudiag_hub_machine_verdict{{machine="{fakes[1].address}",verdict="error"}} 1' in text
    assert "gpudiag_gpu" not in text


def test_words_of_a_machine_are_cut_and_steer_nothing() -> None:
    steering = "\x1b[2J\u202e" + "x" * 5000
    with machines_on_sockets([FakeMachine("gpu1", changes={"host": steering, "headline": steering})]) as (
        fake,
    ):
        one = row(look([fake], all_asked), fake)
    assert len(one.report.host) < 200
    assert len(one.report.headline) < 700
    assert one.report.host.isprintable()
    assert replace(one.report, host="").headline.startswith("\\x1b[2J\\u202e")


def test_a_hub_ends_at_once_whatever_its_machines_are_at() -> None:
    """asyncio.wait_for loses a cancellation that comes together with an answer (Python 3.11 and before)."""

    async def run_for(seconds: float) -> bool:
        watch = HubWatch(sources, None, lambda _document, _text: None, lambda _event: None)
        watch.viewers = 1
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait({task}, timeout=WITHIN_SECONDS)
        others = asyncio.all_tasks() - {asyncio.current_task()}  # questions that end a turn later
        if others:
            await asyncio.wait(others, timeout=WITHIN_SECONDS)
        return task.done() and asyncio.all_tasks() == {asyncio.current_task()}

    fakes = [FakeMachine(f"gpu{number}") for number in range(30)]
    fakes += [FakeMachine(kind, kind=kind) for kind in ("hang", "drip", "closed", "endless")]
    with machines_on_sockets(fakes):
        sources = parse_sources([fake.address for fake in fakes], MachineTokens())
        assert all(asyncio.run(run_for(0.1 * number)) for number in range(1, 9))
