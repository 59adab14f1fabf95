"""What the machine is and does: devices, processes, topology, sources, checks, findings, history."""

import asyncio
from time import monotonic
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gpudiag.checks.gpu.state import findings_about
from gpudiag.checks.links.topology import build_topology
from gpudiag.checks.on_topology import add_verdict
from gpudiag.compat import parse_iso_time
from gpudiag.errors import GpudiagError, UsageError
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.history import History
from gpudiag.model.report import Report
from gpudiag.model.service import (
    DeviceDocument,
    Findings,
    Live,
    Processes,
    Series,
    Sources,
    Timeline,
)
from gpudiag.model.topology import Topology
from gpudiag.model.untrusted_text import mask_text
from gpudiag.render.report_formats import render_json
from gpudiag.sampler.ring import NAMES
from gpudiag.service.usage import list_processes
from gpudiag.store.history import machine_key
from gpudiag.time_limit import within
from gpudiag_api.gate import AS_HEAD
from gpudiag_api.history import Question, stays
from gpudiag_api.openapi import answers
from gpudiag_api.replies import Encoded, Problem, encode_body, encode_document, reply
from gpudiag_api.service import Service

_DEADLINE_SECONDS = 2.0
_FRESH_SECONDS = 15.0

_MAX_PARAMETER = 1000
_MAX_TIME = 253_402_300_799.0  # the end of the year 9999

_kept: dict[str, tuple[float, object, History]] = {}


async def read_stored_history(service: Service, machine: str) -> History:
    """The stored history of that machine; if the store does not answer, the last one read or an empty one."""
    store = service.store
    empty = History(machine, mask_text(service.settings.store or "none"))
    at, stamp, known = _kept.get(machine, (0.0, None, empty))
    if store is None or (at and monotonic() - at < _FRESH_SECONDS):
        return known
    try:
        now = await within(_DEADLINE_SECONDS, asyncio.to_thread(store.stamp))
        if now is not None and now[0] is None:  # nothing was ever stored
            known = empty
        elif not at or now is None or now != stamp:
            reading = asyncio.to_thread(store.read_history, machine)
            known = await within(_DEADLINE_SECONDS, reading)
    except (GpudiagError, asyncio.TimeoutError):
        return known
    _kept[machine] = (monotonic(), now, known)
    return known


Text = Annotated[str | None, Query(max_length=_MAX_PARAMETER)]


def machine_routes(service: Service) -> APIRouter:
    """The routes of the machine, answered from the service's newest snapshot."""
    router = APIRouter(prefix="/api/v1", tags=["machine"])

    @router.get("/devices", responses=answers(Live, 503), summary="Every GPU now")
    async def read_devices(request: Request) -> Response:
        service.note_request(request)
        service.need_live()
        assert service.live is not None  # noqa: S101 - there is a tick
        return reply(request, service.live)

    @router.get("/devices/{device}", responses=answers(DeviceDocument, 404, 503), summary="One GPU whole")
    async def read_device(request: Request, device: str) -> Response:
        live, snapshot = service.need_live(), _snapshot(service)
        found = _find(snapshot, device)
        row = next((row for row in live.devices if row.id == found.id), None)
        if row is None:  # found in a new snapshot; the tick that shows it comes in a moment
            detail, hint = "this GPU has just been found", "ask again in a second"
            raise Problem(503, "service.starting", detail, hint, {"Retry-After": "1"})
        known = service.watch.findings.findings if service.watch.findings else ()
        about = findings_about(found, known)
        return reply(request, encode_document(DeviceDocument(live.at, snapshot.host, found, row, about)))

    @router.get("/snapshot", responses=answers(Snapshot, 503), summary="The machine whole")
    async def read_snapshot(request: Request) -> Response:
        return reply(request, _cached(service, "snapshot", lambda: encode_document(_snapshot(service))))

    @router.get("/processes", responses=answers(Processes, 503), summary="Who uses which GPU")
    async def read_processes(request: Request) -> Response:
        document = list_processes(_snapshot(service), service.idle.idle_since, service.shares)
        return reply(request, encode_document(document))

    @router.get(
        "/topology", responses=answers(Topology, 503), summary="How GPUs and network cards are joined"
    )
    async def read_topology(request: Request) -> Response:
        snapshot = _snapshot(service)
        history = await read_stored_history(service, machine_key(snapshot))
        topology, report = build_topology(snapshot, history.baselines), service.watch.report
        return reply(request, encode_document(add_verdict(topology, report.results) if report else topology))

    @router.get("/sources", responses=answers(Sources, 503), summary="The sources side by side")
    async def read_sources(request: Request) -> Response:
        seen = _snapshot(service)
        document = Sources(seen.taken_at, seen.sources, seen.views, seen.disagreements, seen.torch)
        return reply(request, encode_document(document))

    @router.get("/checks", responses=answers(Report, 503), summary="Every check's result")
    async def read_checks(request: Request) -> Response:
        report = service.watch.report
        if report is None:
            service.need_live()
            raise Problem(503, "service.starting", "no check has run yet")
        text = _cached(service, "checks", lambda: encode_body(render_json(report).encode()))
        return reply(request, text)

    @router.get("/findings", responses=answers(Findings, 503), summary="What is wrong, worst first")
    async def read_findings(request: Request) -> Response:
        findings = service.watch.findings
        if findings is None:
            raise Problem(503, "service.starting", "no check has run yet", "ask again in a second")
        return reply(request, encode_document(findings))

    @router.get("/events", responses=answers(Timeline), summary="What happened")
    async def read_events(request: Request) -> Response:
        return reply(request, encode_document(service.readings.timeline()))

    described = answers(Series, 422)
    described[200]["content"]["text/csv"] = {}

    @router.get("/history", responses=described, summary="Readings over a range of time")
    async def read_history(
        request: Request,
        start: Annotated[str | None, Query(alias="from", max_length=64)] = None,
        end: Annotated[str | None, Query(alias="to", max_length=64)] = None,
        step: Annotated[float | None, Query(ge=1, le=86400)] = None,
        series: Text = None,
        device: Text = None,
        format: Annotated[str, Query(pattern="^(json|csv)$")] = "json",
    ) -> Response:
        service.watch.note_look()
        names = _series_names(series)
        uuids = _uuids(service, device)
        from_at, to_at = _moment("from", start), _moment("to", end)
        if from_at is not None and to_at is not None and from_at > to_at:
            raise UsageError("from is later than to", hint="from=EARLIER&to=LATER")
        question = Question(from_at, to_at, step, names, uuids, as_csv=format == "csv")
        has_left = stays if AS_HEAD in request.scope else request.is_disconnected
        return reply(request, await service.history.answer(question, has_left))

    @router.get("/baselines", responses=answers(History, 503), summary="Stored runs and baselines")
    async def read_baselines(request: Request) -> Response:
        name = machine_key(_snapshot(service))
        return reply(request, encode_document(await read_stored_history(service, name)))

    return router


def _snapshot(service: Service) -> Snapshot:
    """The newest snapshot. Raises Problem: there is none yet."""
    service.watch.note_look()
    service.need_live()
    assert service.watch.snapshot is not None  # noqa: S101 - a tick is made of one
    return service.watch.snapshot


def _cached(service: Service, name: str, make: Any) -> Encoded:
    return service.cache.get(name, service.need_live().sequence, make)


def _find(snapshot: Snapshot, name: str) -> Device:
    for device in snapshot.devices:
        if name in (device.id.uuid, str(device.id.nvml_index), device.id.bus_id):
            return device
    raise Problem(404, "device.not_found", f"there is no GPU {name[:64]!r}", "GET /api/v1/devices lists them")


def _series_names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return NAMES
    names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if name not in NAMES:
            raise UsageError(f"there is no series {name[:40]!r}", hint=f"one of {', '.join(NAMES)}")
    return names or NAMES


def _uuids(service: Service, text: str | None) -> tuple[str, ...] | None:
    """The UUIDs of the named GPUs; one that is gone from the machine is known from its readings.

    Raises:
        UsageError: there is no such GPU, neither in the machine nor in the readings.
    """
    if text is None:
        return None
    snapshot = service.watch.snapshot
    known = {uuid: uuid for uuid in service.readings.uuids()}
    for device in snapshot.devices if snapshot else ():
        uuid = str(device.id.uuid)
        known |= {str(device.id.nvml_index): uuid, str(device.id.bus_id): uuid, uuid: uuid}
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known and snapshot is not None:  # before the first one, indices are not known
            raise UsageError(f"there is no GPU {name[:64]!r}", hint="GET /api/v1/devices lists them")
    return tuple(known.get(name, name) for name in names)


def _moment(name: str, text: str | None) -> float | None:
    """Unix seconds for a number or an ISO time. Raises UsageError: it is neither, or out of range."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parse_iso_time(text).timestamp()
        except (ValueError, OverflowError) as error:
            raise UsageError(
                f"{name}: {text!r} is no time", hint="Unix seconds, or 2026-11-20T21:04:05Z"
            ) from error
    if not 0 <= seconds <= _MAX_TIME:
        raise UsageError(f"{name}: {text!r} is out of range", hint="Unix seconds, or 2026-11-20T21:04:05Z")
    return seconds
