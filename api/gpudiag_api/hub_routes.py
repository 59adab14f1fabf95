"""The hub: one service over the services of several machines, and its routes.

It reads; nothing of a caller reaches a machine.
"""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpudiag import __version__
from gpudiag.fleet.discovery import Sources
from gpudiag.fleet.hub import HubWatch
from gpudiag.model.codec import dump_document, encode
from gpudiag.model.hub import HubDocument, HubEvent, HubEvents
from gpudiag.model.reading import NOT_ASKED
from gpudiag.model.service import SamplerState, ServiceHealth
from gpudiag.render.exposition import OPENMETRICS_TYPE, TEXT_TYPE
from gpudiag.render.metrics_hub import render_hub_metrics
from gpudiag_api.access import Access
from gpudiag_api.live_events import MACHINES
from gpudiag_api.negotiation import wants_openmetrics
from gpudiag_api.openapi import answers
from gpudiag_api.replies import Encoded, Problem, encode_body, encode_document, reply
from gpudiag_api.settings import Settings


class HubService(Access):
    """The machines under watch, and the listeners."""

    is_hub = True

    def __init__(self, settings: Settings, sources: Sources) -> None:
        """Make all of it; nothing is asked before `start`."""
        super().__init__(settings)
        self.watch = HubWatch(sources, settings.hub_tls, self._publish, self._publish_event)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to ask the machines."""
        self._task = asyncio.create_task(self.watch.run())
        self._task.add_done_callback(self.end_by_bug)

    async def stop(self) -> None:
        """End questions and streams."""
        self.events.close()
        if self._task is not None:
            self._task.remove_done_callback(self.end_by_bug)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def note_look(self) -> None:
        """Somebody looks: the machines are asked more often for a while."""
        self.watch.note_look()

    def need_document(self) -> HubDocument:
        """The newest document. Raises Problem: there is none yet."""
        if self.watch.document is None:
            raise Problem(
                503,
                "service.starting",
                "no machine has been asked yet",
                "ask again in a second",
                {"Retry-After": "1"},
            )
        return self.watch.document

    def health(self) -> ServiceHealth:
        """The hub's health: ready once it has asked, whatever the machines answer."""
        document = self.watch.document
        return ServiceHealth(
            ready=document is not None,
            version=__version__,
            started_at=self.started_at,
            sampler_state=SamplerState.OFF.value,
            reason="a hub reads no GPU of its own",
            wedged_call=None,
            last_good_at=NOT_ASKED,
            stuck_children=0,
            restarts=0,
            stream_clients=len(self.events.listeners),
            warnings=() if document is None else document.notes,
        )

    def _publish(self, _document: HubDocument, text: str) -> None:
        self.watch.viewers = len(self.events.listeners)
        self.publish_live(MACHINES, text)

    def _publish_event(self, event: HubEvent) -> None:
        self.events.publish("machine_event", dump_document(encode(event)))


def hub_routes(hub: HubService) -> APIRouter:
    """The routes of a hub, answered from its machines' last answers."""
    router = APIRouter(tags=["hub"])

    @router.get(
        "/api/v1/machines", responses=answers(HubDocument, 503), summary="Every machine now, worst first"
    )
    async def read_machines(request: Request) -> Response:
        hub.note_request(request)
        hub.need_document()
        assert hub.live is not None  # noqa: S101 - there is a document
        return reply(request, hub.live)

    @router.get("/api/v1/events", responses=answers(HubEvents), summary="What happened on all machines")
    async def read_events(request: Request) -> Response:
        return reply(request, encode_document(HubEvents(tuple(hub.watch.events))))

    described = answers(None, 503, media_type="text/plain")
    described[200]["content"]["application/openmetrics-text"] = {}

    @router.get("/metrics", responses=described, summary="Which machines answer, and their verdicts")
    async def read_metrics(request: Request) -> Response:
        document = hub.need_document()
        openmetrics = wants_openmetrics(request.headers.get("accept"))

        def render() -> Encoded:
            text = render_hub_metrics(document, openmetrics=openmetrics)
            return encode_body(text.encode(), OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)

        response = reply(request, hub.cache.get(f"metrics {openmetrics}", document.sequence, render))
        response.headers["Vary"] = "Accept, Accept-Encoding"
        return response

    return router
