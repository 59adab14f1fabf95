"""Runs: start, follow, cancel, read their reports."""

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
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
from gpudiag_api.service import Service

_MEDIA_TYPES = {
    "json": "application/json",
    "junit": "application/xml",
    "markdown": "text/markdown; charset=utf-8",
}
_STATES = "|".join(state.value for state in RunState)

_IDENTITY = r"^[0-9a-z-]{1,40}$"
Identity = Annotated[str, Path(pattern=_IDENTITY)]
PlanField = str | int | float | bool | list[Annotated[str, Field(max_length=64)]] | None


class NewRun(BaseModel):
    """What to run: its kind, the plan's fields that are not defaults, the GPUs, and what to do if busy."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"kind": "nccl-test", "plan": {"op": ["all_reduce"], "max_bytes": 1048576}}]
        },
    )

    kind: str = Field(max_length=32)
    plan: dict[Annotated[str, Field(max_length=40)], PlanField] = Field(default_factory=dict, max_length=40)
    gpus: list[Annotated[str, Field(max_length=64)]] = Field(default_factory=list, max_length=64)
    queue: bool = False
    force: bool = False
    interpreter: str | None = Field(default=None, max_length=64)

    def request(self) -> RunRequest:
        """The RunRequest that this body asks for."""
        plan = {name: tuple(value) if isinstance(value, list) else value for name, value in self.plan.items()}
        return RunRequest(self.kind, plan, tuple(self.gpus), self.queue, self.force, self.interpreter)


def run_routes(service: Service) -> APIRouter:
    """The routes of the service's runs."""
    router = APIRouter(prefix="/api/v1/runs", tags=["runs"])
    runs = service.runs

    @router.get("", responses=answers(None), summary="Runs, newest first, and what can be started")
    async def list_runs(
        request: Request,
        kind: Annotated[str | None, Query(max_length=32)] = None,
        state: Annotated[str | None, Query(pattern=f"^({_STATES})$")] = None,
    ) -> Response:
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

    @router.post(
        "",
        status_code=201,
        responses=answers(Run, 408, 409, 413, 415, 429, 503, status=201)
        | {202: {"description": "it waits", **answers(Run)[200]}},
        summary="Start a run",
    )
    async def start_run(request: Request, new: NewRun) -> Response:
        service.need_live()  # which GPUs there are must be known
        run = runs.submit(new.request())
        status = 202 if run.state is RunState.QUEUED else 201
        place = f"{service.settings.root_path}/api/v1/runs/{run.id}"
        return Response(dumps(run), status, {"Location": place}, "application/json")

    @router.get("/{identity}", responses=answers(Run, 404), summary="One run")
    async def read_run(request: Request, identity: Identity) -> Response:
        return reply(request, encode_document(runs.find(identity)))

    @router.post(
        "/{identity}/cancel",
        status_code=202,
        responses=answers(Run, 404, 408, 409, 413, 415, status=202),
        summary="Ask a run to end",
    )
    async def cancel_run(identity: Identity) -> Response:
        return Response(dumps(runs.cancel(identity)), 202, None, "application/json")

    @router.get("/{identity}/events", responses=answers(RunEvents, 404), summary="What a run has reported")
    async def read_run_events(
        request: Request, identity: Identity, since: Annotated[int, Query(ge=0, le=1 << 31)] = 0
    ) -> Response:
        return reply(request, encode_document(runs.events(identity, since)))

    @router.get(
        "/{identity}/log",
        responses=answers(None, 404, 503, media_type="text/plain"),
        summary="The end of what a run printed",
    )
    async def read_run_log(request: Request, identity: Identity) -> Response:
        return reply(request, encode_body(await runs.log(identity), "text/plain; charset=utf-8"))

    @router.get(
        "/{identity}/comparison",
        responses=answers(Comparison, 404, 406, 503),
        summary="What differs between the reports of two runs, as `gpudiag compare` judges",
    )
    async def compare_run(
        request: Request,
        identity: Identity,
        before: Annotated[str, Query(pattern=_IDENTITY, description="the other run, the earlier one")],
    ) -> Response:
        sides = [NamedDocument(f"run {one}", await _report_of(service, one)) for one in (before, identity)]
        try:
            compared = await asyncio.to_thread(compare_documents, *sides)
        except UsageError as error:
            hint = "preflight and bandwidth are; of the others the page shows both side by side"
            raise Problem(406, "run.not_compared", error.message, hint) from error
        return reply(request, encode_document(compared))

    @router.get("/{identity}/report", responses=_report_answers(), summary="A run's document")
    async def read_run_report(
        request: Request,
        identity: Identity,
        format: Annotated[str, Query(pattern=f"^({'|'.join(REPORT_FORMATS)})$")] = "json",
    ) -> Response:
        body = await _report_of(service, identity)
        if format != "json":
            body = escape_steering(_rendered(body, format)).encode()
        media_type = _MEDIA_TYPES.get(format, "text/plain; charset=utf-8")
        return reply(request, encode_body(body, media_type))

    return router


async def _report_of(service: Service, identity: str) -> bytes:
    """The run's document. Raises Problem: it has none."""
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
