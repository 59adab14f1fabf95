"""The service itself: live stream, polling, health, metrics, explanations, schemas, sessions."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from gpudiag.errors import UsageError
from gpudiag.model.codec import dumps
from gpudiag.model.documents import DOCUMENTS, json_schema
from gpudiag.model.reading import Missing, value_or
from gpudiag.model.service import ExplanationDocument, Live, ServiceHealth, Session
from gpudiag.render.exposition import OPENMETRICS_TYPE, TEXT_TYPE
from gpudiag.render.metrics_dcgm import HostLabel, render_dcgm
from gpudiag.render.metrics_native import ServiceNumbers, render_metrics
from gpudiag_api.access import Access
from gpudiag_api.gate import client_of, role_of
from gpudiag_api.live_events import stream_events
from gpudiag_api.negotiation import wants_openmetrics
from gpudiag_api.openapi import answers, problem_answers
from gpudiag_api.replies import Encoded, Problem, encode_body, encode_document, reply
from gpudiag_api.service import Service
from gpudiag_api.tokens import SESSION_SECONDS

_FRESHEN_SECONDS = 0.3  # a scrape waits for that long for numbers of this second


def service_routes(service: Access) -> APIRouter:
    """The routes that a machine's service and a hub have alike."""
    router = APIRouter(tags=["service"])
    _add_health(router, service)
    _add_events(router, service)
    _add_reference(router)
    _add_session(router, service)
    return router


def metrics_routes(service: Service) -> APIRouter:
    """The metrics of a machine."""
    router = APIRouter(tags=["service"])
    _add_metrics(router, service)
    return router


def _add_health(router: APIRouter, service: Access) -> None:
    @router.get("/healthz", responses=answers(ServiceHealth), summary="Whether the service answers")
    async def read_health(request: Request) -> Response:
        return reply(request, encode_document(service.health()), cache="no-store")

    @router.get("/readyz", responses=answers(ServiceHealth, 503), summary="Whether there is fresh data")
    async def read_readiness() -> Response:
        health = service.health()
        return Response(
            dumps(health), 200 if health.ready else 503, {"Cache-Control": "no-store"}, "application/json"
        )


def _add_events(router: APIRouter, service: Access) -> None:
    @router.get(
        "/api/v1/stream",
        responses=answers(None, 503, media_type="text/event-stream"),
        summary="Live updates as server-sent events",
    )
    async def read_stream(request: Request) -> Response:
        if len(service.events.listeners) >= service.settings.max_streams:
            raise Problem(
                503, "service.streams", f"{service.settings.max_streams} listen already", "poll instead"
            )
        service.note_look()
        return stream_events(service.events, request.headers.get("last-event-id"))

    @router.get("/api/v1/poll", responses=answers(None), summary="The same events without a stream")
    async def poll(request: Request, since: Annotated[str | None, Query(max_length=64)] = None) -> Response:
        service.note_request(request)
        return reply(request, encode_body(json.dumps(service.events.poll(since)).encode()), cache="no-store")


def _add_metrics(router: APIRouter, service: Service) -> None:
    described = answers(None, 503, media_type="text/plain")
    described[200]["content"]["application/openmetrics-text"] = {}

    @router.get("/metrics", responses=described, summary="Metrics for Prometheus")
    async def read_metrics(
        request: Request,
        dialect: Annotated[str, Query(pattern="^(native|dcgm)$")] = "native",
        processes: bool = False,
        full: bool = False,
        shares: bool = False,
        host_label: HostLabel = "Hostname",
    ) -> Response:
        await service.watch.freshen(_FRESHEN_SECONDS)
        live = service.need_live()
        openmetrics = wants_openmetrics(request.headers.get("accept"))
        if dialect == "dcgm":
            page = service.cache.get(
                f"metrics dcgm {shares} {host_label} {openmetrics}",
                live.sequence,
                lambda: _dcgm(service, shares=shares, host_label=host_label, openmetrics=openmetrics),
            )
        else:
            page = service.cache.get(
                f"metrics {processes} {full} {openmetrics}",
                live.sequence,
                lambda: _native(service, live, processes=processes, full=full, openmetrics=openmetrics),
            )
        response = reply(request, page)
        response.headers["Vary"] = "Accept, Accept-Encoding"
        return response


def _native(service: Service, live: Live, *, processes: bool, full: bool, openmetrics: bool) -> Encoded:
    snapshot = service.watch.snapshot
    assert snapshot is not None  # noqa: S101 - a tick is made of one
    sampler, report = live.sampler, service.watch.report
    results = () if report is None else report.results
    numbers = ServiceNumbers(
        sampler_state=sampler.state.value,
        fresh=service.health().ready,
        last_good_at=service.last_success_at(live),
        tick_seconds=None if isinstance(sampler.tick_seconds, Missing) else sampler.tick_seconds,
        restarts=sampler.restarts,
        stuck_children=service.watch.stuck,
        stream_clients=len(service.events.listeners),
        nvml_state=snapshot.source("nvml").state.value,
        health={str(value_or(row.id.uuid, "")): row.health for row in live.devices},
        results=results,
        findings=() if service.watch.findings is None else service.watch.findings.findings,
        run_findings=tuple(service.runs.findings.present(snapshot, results)),
        xids=service.readings.xids(),
        last_indices=service.watch.seen.last_indices(),
        elsewhere=service.watch.seen.elsewhere(snapshot),
        active_runs=len(live.active_runs),
        processes=processes,
        owners=service.watch.owners,
    )
    text = render_metrics(snapshot, numbers, full=full, openmetrics=openmetrics)
    return encode_body(text.encode(), OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)


def _dcgm(service: Service, *, shares: bool, host_label: HostLabel, openmetrics: bool) -> Encoded:
    snapshot = service.watch.snapshot
    assert snapshot is not None  # noqa: S101 - a tick is made of one
    text = render_dcgm(
        snapshot,
        tuple(service.readings.entries),
        service.watch.owners,
        shares=shares,
        host_label=host_label,
        last_indices=service.watch.seen.last_indices(),
        openmetrics=openmetrics,
    )
    return encode_body(text.encode(), OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)


def _add_reference(router: APIRouter) -> None:
    @router.get(
        "/api/v1/explain/{topic}", responses=answers(ExplanationDocument, 404), summary="One topic explained"
    )
    async def explain(
        request: Request, topic: Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,80}$")]
    ) -> Response:
        # Here: the catalogue of all that a log may show takes memory that a service without a reader does not
        # need.
        from gpudiag.explain.recipe import explain_name

        explanation = explain_name(topic)
        if explanation is None:
            raise Problem(404, "topic.not_found", f"there is no topic {topic!r}", "such as gpu.lost, xid-79")
        return reply(request, encode_document(ExplanationDocument(explanation)))

    @router.get("/api/v1/schemas", responses=answers(None), summary="The names of the JSON Schemas")
    async def list_schemas(request: Request) -> Response:
        document = {"schema": "gpudiag.schemas/1", "schemas": sorted(DOCUMENTS)}
        return reply(request, encode_body(json.dumps(document).encode()))

    @router.get("/api/v1/schemas/{name}/{version}", responses=answers(None, 404), summary="One JSON Schema")
    async def read_schema(
        request: Request,
        name: Annotated[str, Path(pattern=r"^[a-z_.]{1,40}$")],
        version: Annotated[int, Path(ge=1, le=1000)],
    ) -> Response:
        full = f"gpudiag.{name.removeprefix('gpudiag.')}/{version}"
        try:
            schema = json_schema(full)
        except UsageError as error:
            raise Problem(404, "schema.not_found", error.message, error.hint) from error
        return reply(request, encode_body(json.dumps(schema).encode(), "application/schema+json"))


def _add_session(router: APIRouter, service: Access) -> None:
    settings, sessions = service.settings, service.sessions

    @router.get("/api/v1/session", responses=answers(Session), summary="What this caller may do")
    async def read_session(request: Request) -> Response:
        return reply(request, encode_document(session_of(service, request)), cache="no-store")

    @router.post(
        "/api/v1/session",
        status_code=204,
        responses={204: {"description": "the cookie is set"}} | problem_answers(408, 413, 415),
        summary="Show a token, get a cookie",
    )
    async def open_session(request: Request) -> Response:
        role = service.role_of_token(client_of(request.scope), await _token(request))
        if role is None:
            raise Problem(
                401, "access.token", "this token is not known", headers={"WWW-Authenticate": "Bearer"}
            )
        answer = Response(None, 204, {"Cache-Control": "no-store"})
        answer.set_cookie(
            settings.cookie,
            sessions.open(role),
            max_age=int(SESSION_SECONDS),
            path=settings.root_path or "/",
            secure=settings.tls,
            httponly=True,
            samesite="strict",
        )
        return answer

    @router.delete(
        "/api/v1/session",
        status_code=204,
        responses={204: {"description": "logged out"}} | problem_answers(408, 413, 415),
        summary="Log out",
    )
    async def close_session(request: Request) -> Response:
        sessions.close(request.cookies.get(settings.cookie, ""))
        answer = Response(None, 204)
        answer.delete_cookie(settings.cookie, path=settings.root_path or "/")
        return answer


def session_of(service: Access, request: Request) -> Session:
    """What the caller of this request may do."""
    settings = service.settings
    return Session(role_of(request), settings.allow_actions, settings.reading_needs_token)


async def _token(request: Request) -> str:
    """The token in the header or the body. Raises Problem: there is none."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and token:
        return token.strip()
    try:
        given: Any = json.loads(await request.body() or b"null")
    except (ValueError, RecursionError) as error:
        raise Problem(400, "request.body", "the body is not JSON") from error
    found = given.get("token") if isinstance(given, dict) else None
    if not isinstance(found, str):
        raise Problem(
            422, "request.body", "no token", 'a header "Authorization: Bearer TOKEN", or {"token": ...}'
        )
    return found
