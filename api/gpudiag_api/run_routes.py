"""Runs: start, follow, cancel, read their reports."""

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gpudiag.errors import GpudiagError, UsageError
from gpudiag.model.codec import dumps, encode
from gpudiag.model.comparison import Comparison
from gpudiag.model.documents import loads
from gpudiag.model.run import Run, RunEvents, RunRequest, RunState
from gpudiag.model.untrusted_text import escape_steering
from gpudiag.render.report_formats import REPORT_FORMATS, formats_of, render_any_report
from gpudiag.runs.compare import NamedDocument, compare_documents
from gpudiag.service.kinds import plan_schema
from gpudiag_api.openapi import answers, problem_answers
from gpudiag_api.replies import Problem, encode_body, encode_document, reply
from gpudiag_api.routes import Parameter, Router, choice, part, read_json, text
from gpudiag_api.service import Service

_MEDIA_TYPES = {
    "json": "application/json",
    "junit": "application/xml",
    "markdown": "text/markdown; charset=utf-8",
}
_IDENTITY = part("identity", "[0-9a-z-]{1,40}")
_BEFORE = Parameter(
    "before", {**_IDENTITY.schema, "description": "the other run, the earlier one"}, is_required=True
)
_NAME = {"type": "string", "maxLength": 64}
_NEW_RUN: dict[str, Any] = {
    "description": "What to run: its kind, the plan's fields that are not as by default, the GPUs, and what to do if busy.",
    "type": "object",
    "properties": {
        "kind": {"type": "string", "maxLength": 32},
        "plan": {
            "type": "object",
            "propertyNames": {"type": "string", "maxLength": 40},
            "additionalProperties": {
                "type": ["string", "integer", "number", "boolean", "array", "null"],
                "items": _NAME,
            },
            "maxProperties": 40,
        },
        "gpus": {"type": "array", "items": _NAME, "maxItems": 64},
        "queue": {"type": "boolean", "default": False},
        "force": {"type": "boolean", "default": False},
        "interpreter": {"type": ["string", "null"], "maxLength": 64},
    },
    "required": ["kind"],
    "additionalProperties": False,
    "examples": [{"kind": "nccl-test", "plan": {"op": ["all_reduce"], "max_bytes": 1048576}}],
}


def run_request(given: dict[str, Any]) -> RunRequest:
    """What a body asks for that the schema allows."""
    plan = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.get("plan", {}).items()
    }
    return RunRequest(
        given["kind"],
        plan,
        tuple(given.get("gpus", ())),
        given.get("queue", False),
        given.get("force", False),
        given.get("interpreter"),
    )


def run_routes(service: Service) -> Router:
    """The routes of the service's runs."""
    router = Router("runs", "/api/v1/runs")
    runs = service.runs

    @router.add(
        "GET",
        "",
        text("kind", 32),
        choice("state", tuple(RunState)),
        answers=answers(None),
        summary="Runs, newest first, and what can be started",
    )
    async def list_runs(request: Request, kind: str | None, state: str | None) -> Response:
        document = {
            "schema": "gpudiag.runs/1",
            "runs": [encode(run) for run in runs.list_runs(kind, state)],
            "kinds": [
                {
                    "kind": kind.name,
                    "title": kind.title,
                    "uses_gpus": not kind.only_looks,
                    "plan_schema": plan_schema(kind),
                    "presets": [
                        {"name": one.name, "means": one.means, "plan": dict(one.fields)}
                        for one in kind.plan_type.PRESETS
                    ],
                }
                for kind in runs.kinds.values()
            ],
            "interpreters": sorted(service.settings.interpreters),
            "actions_allowed": service.settings.allow_actions,
        }
        return reply(request, encode_body(json.dumps(document, ensure_ascii=False).encode()))

    @router.add(
        "POST",
        "",
        answers=answers(Run, 408, 409, 413, 415, 429, 503, status=201)
        | {202: {"description": "it waits", **answers(Run)[200]}},
        summary="Start a run",
        body=("NewRun", _NEW_RUN),
    )
    async def start_run(request: Request) -> Response:
        wanted = run_request(await read_json(request, _NEW_RUN))
        service.need_live()  # which GPUs there are must be known
        run = runs.submit(wanted)
        status = 202 if run.state is RunState.QUEUED else 201
        place = f"{service.settings.root_path}/api/v1/runs/{run.id}"
        return Response(dumps(run), status, {"Location": place}, "application/json")

    @router.add("GET", "/{identity}", _IDENTITY, answers=answers(Run, 404), summary="One run")
    async def read_run(request: Request, identity: str) -> Response:
        return reply(request, encode_document(runs.find(identity)))

    @router.add(
        "POST",
        "/{identity}/cancel",
        _IDENTITY,
        answers=answers(Run, 404, 408, 409, 413, 415, status=202),
        summary="Ask a run to end",
    )
    async def cancel_run(_request: Request, identity: str) -> Response:
        return Response(dumps(runs.cancel(identity)), 202, None, "application/json")

    @router.add(
        "GET",
        "/{identity}/events",
        _IDENTITY,
        Parameter("since", {"type": "integer", "minimum": 0, "maximum": 1 << 31, "default": 0}),
        answers=answers(RunEvents, 404),
        summary="What a run has reported",
    )
    async def read_run_events(request: Request, identity: str, since: int) -> Response:
        return reply(request, encode_document(runs.events(identity, since)))

    @router.add(
        "GET",
        "/{identity}/log",
        _IDENTITY,
        answers=answers(None, 404, 503, media_type="text/plain"),
        summary="The end of what a run printed",
    )
    async def read_run_log(request: Request, identity: str) -> Response:
        return reply(request, encode_body(await runs.log(identity), "text/plain; charset=utf-8"))

    @router.add(
        "GET",
        "/{identity}/comparison",
        _IDENTITY,
        _BEFORE,
        answers=answers(Comparison, 404, 406, 503),
        summary="What differs between the reports of two runs, as `gpudiag compare` judges",
    )
    async def compare_run(request: Request, identity: str, before: str) -> Response:
        sides = [NamedDocument(f"run {one}", await _report_of(service, one)) for one in (before, identity)]
        try:
            compared = await asyncio.to_thread(compare_documents, *sides)
        except UsageError as error:
            hint = "preflight and bandwidth are; of the others the page shows both side by side"
            raise Problem(406, "run.not_compared", error.message, hint) from error
        return reply(request, encode_document(compared))

    @router.add(
        "GET",
        "/{identity}/report",
        _IDENTITY,
        choice("format", tuple(REPORT_FORMATS), "json"),
        answers=_report_answers(),
        summary="A run's document",
    )
    async def read_run_report(request: Request, identity: str, format: str) -> Response:
        body = await _report_of(service, identity)
        if format != "json":
            body = escape_steering(_rendered(body, format)).encode()
        media_type = _MEDIA_TYPES.get(format, "text/plain; charset=utf-8")
        return reply(request, encode_body(body, media_type))

    return router


async def _report_of(service: Service, identity: str) -> bytes:
    """The run's document.

    Raises:
        Problem: it has none.
    """
    body = await service.runs.report(identity)
    if body is None:
        raise Problem(404, "run.no_report", f"run {identity} has no report", "see its log")
    return body


def _report_answers() -> dict[Any, Any]:
    content: dict[str, Any] = {
        "application/json": {},
        "application/xml": {},
        "text/plain": {},
        "text/markdown": {},
    }
    return {
        200: {"description": "the report", "content": content},
        304: {"description": "the caller has it"},
    } | problem_answers(404, 406, 503)


def _rendered(body: bytes, name: str) -> str:
    """The report in that format.

    Raises:
        Problem: this kind of report has no such format, or this version cannot read the report.
    """
    try:
        report = loads(body.decode())
    except (GpudiagError, UnicodeDecodeError) as error:
        raise Problem(406, "run.report_format", "the report cannot be read by this gpudiag") from error
    known = formats_of(type(report))
    if name not in known:
        hint = f"format= {', '.join(known)}" if known else "read its log"
        raise Problem(406, "run.report_format", f"this kind of report is not written as {name}", hint)
    return render_any_report(name, report)
