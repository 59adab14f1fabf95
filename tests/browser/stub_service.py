"""A stub of `gpudiag serve` for views whose state a real service reaches slowly or seldom.

It serves the built page as docs/api.md says, with the same policy headers, and documents of
`stub_documents`. `python -m tests.browser.stub_service SCENARIO PORT` runs it by hand.
"""

import json
import mimetypes
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gpudiag.compat import UTC
from gpudiag.explain.recipe import explain_topic
from gpudiag.model.codec import encode, to_document
from tests.browser import stub_documents as documents
from tests.unit.model.job_runs import make_job_run

STATIC = Path(__file__).parents[2] / "api/gpudiag_api/static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TICK_SECONDS = 0.5
RUN_TICKS = 6
HANG_SCHEMA = {
    "type": "object",
    "properties": {
        "job_of": {"type": ["integer", "null"], "minimum": 1, "maximum": 1 << 22, "default": None}
    },
}
PLAN_SCHEMA = {
    "type": "object",
    "properties": {
        "backend": {"enum": ["auto", "nccl", "gloo"], "default": "auto", "type": "string"},
        "nproc": {
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": 256}, {"type": "null"}],
            "default": None,
        },
        "op": {
            "type": "array",
            "items": {"enum": ["all_reduce", "all_gather", "broadcast"]},
            "default": ["all_reduce"],
        },
        "max_bytes": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None},
        "unaligned": {"type": "boolean", "default": False},
        "inject": {"type": "array", "items": {"type": "string"}, "default": []},
    },
}

PRESETS = [
    {"name": "quick", "means": "all_reduce up to 1 MiB", "plan": {"max_bytes": 1048576}},
    {"name": "standard", "means": "all_reduce at every size", "plan": {}},
    {
        "name": "before a training",
        "means": "what DDP and FSDP call",
        "plan": {"op": ["all_reduce", "all_gather"]},
    },
]


@dataclass
class StubState:
    """What the stub knows; tests set the session and the prefix, and silence it."""

    machine: documents.Machine
    prefix: str = ""
    session: dict[str, Any] = field(
        default_factory=lambda: {"role": "act", "actions_allowed": True, "token_required": False}
    )
    silent: bool = False  # no more ticks, streamed or polled, as from a sampler that hangs
    told: dict[str, Any] = field(default_factory=dict)  # of a tick, in place of what the machine gives
    sequence: int = 0
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    ticks: dict[str, int] = field(default_factory=dict)
    told_of_runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # gpudiag.event/1, by run
    ranks: int = 4
    holds: bool = False  # runs stand still: no further size, and the ranks wait for one
    requests: list[str] = field(default_factory=list)

    def tick(self) -> list[tuple[str, Any]]:
        """The events of one tick: the GPUs, and how the runs go on."""
        self.sequence += 1
        events: list[tuple[str, Any]] = [("live", self.live())]
        for run in self.runs.values():
            if run["state"] == "running":
                events += self._advance(run)
        return events

    def live(self) -> dict[str, Any]:
        """The tick's document."""
        live = documents.live_of(self.machine, self.sequence, datetime.now(UTC))
        active = [run for run in self.runs.values() if run["state"] == "running"]
        names = ("id", "kind", "state", "started_at", "progress")
        return live | {"active_runs": [{name: run[name] for name in names} for run in active]} | self.told

    def _advance(self, run: dict[str, Any]) -> list[tuple[str, Any]]:
        if self.holds:
            return [
                self._tell(run, documents.ranks_event(self.ticks[run["id"]], still=True, count=self.ranks))
            ]
        done = self.ticks[run["id"]] = self.ticks[run["id"]] + 1
        news = [
            self._tell(run, documents.result_event(done, RUN_TICKS)),
            self._tell(run, documents.ranks_event(done)),
        ]
        self.logs[run["id"]] += f"all_reduce {8 * 4**done} B verified\n"
        run |= {"done": done, "progress": done / RUN_TICKS, "stage": "measure"}
        if done >= RUN_TICKS:
            run |= {"state": "succeeded", "outcome": "pass", "ended_at": _now(), "has_report": True}
        return [*news, ("run", run), ("run_log", {"run": run["id"], "text": self.logs[run["id"]]})]

    def _tell(self, run: dict[str, Any], event: dict[str, Any]) -> tuple[str, Any]:
        told = self.told_of_runs.setdefault(run["id"], [])
        told.append(event)
        return ("run_event", {"run": run["id"], "number": len(told), "event": event})

    def start(self, kind: str) -> dict[str, Any]:
        """A new run."""
        number = f"20261120-2104{len(self.runs):02d}-stub"
        self.ticks[number], self.logs[number] = 0, "starting 4 ranks\n"
        self.runs[number] = run_document(number, kind, "running")
        return self.runs[number]


def run_document(number: str, kind: str, state: str, outcome: str | None = None) -> dict[str, Any]:
    """`gpudiag.run/1`."""
    ended = None if state == "running" else _now()
    return (
        {"schema": "gpudiag.run/1", "id": number, "kind": kind, "state": state, "plan": {}}
        | {"gpus": [], "lock": ["host"], "requested_at": _now(), "started_at": _now()}
        | {"ended_at": ended, "deadline_seconds": 600.0, "outcome": outcome, "exit_status": None}
        | {"reason": None, "stage": "rendezvous", "done": 0, "planned": RUN_TICKS, "progress": 0.0}
        | {"interpreter": None, "command": f"gpudiag {kind}", "has_report": outcome is not None}
        | {"report_formats": ["text", "json"], "queue_position": None, "log_bytes": 0}
    )


def _kind(
    kind: str, title: str, plan_schema: dict[str, Any] | None = None, uses_gpus: bool = True, **more: Any
) -> dict[str, Any]:
    """A kind of run as the service lists it."""
    plan_schema = plan_schema or {"type": "object", "properties": {}}
    return {"kind": kind, "title": title, "uses_gpus": uses_gpus, "plan_schema": plan_schema} | more


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class StubHandler(BaseHTTPRequestHandler):
    """One request, answered from the state of the server."""

    protocol_version = "HTTP/1.1"
    state: StubState

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """A file, a document or the stream."""
        self.state = self.server.state  # type: ignore[attr-defined]
        parts = urlsplit(self.path)
        path = unquote(parts.path).removeprefix(self.state.prefix)
        self.state.requests.append(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if path == "/api/v1/stream":
            self._stream()
        elif path.startswith("/api/v1/"):
            self._document(path.removeprefix("/api/v1/"), query)
        else:
            self._file(path.lstrip("/") or "index.html")

    def do_POST(self) -> None:
        """Start or cancel a run, or log in."""
        self.state = self.server.state  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        path = urlsplit(self.path).path.removeprefix(self.state.prefix + "/api/v1/")
        if path == "session":
            if body.get("token") != "good":
                self._problem(
                    401, "access.token", "That token is not one of this service's.", "Look at the token file."
                )
                return
            self.state.session = {"role": "act", "actions_allowed": True, "token_required": True}
            self._send(204, b"", "application/json")
        elif path == "runs":
            if body.get("kind") == "bandwidth" and not body.get("queue"):
                held = next(iter(self.state.runs), "")
                self._problem(
                    409, "run.conflict", "Another run holds these GPUs.", "Wait, or queue it.", held_by=held
                )
                return
            self._json(self.state.start(body["kind"]) | {"plan": body.get("plan", {})}, 201)
        else:
            run = self.state.runs[path.split("/")[1]]
            run |= {"state": "cancelled", "ended_at": _now(), "reason": "cancelled by the page"}
            self._json(run, 202)

    def _document(self, path: str, query: dict[str, str]) -> None:
        state, machine = self.state, self.state.machine
        first, _, rest = path.partition("/")
        if state.session["role"] is None and first != "session":
            return self._problem(401, "access.token", "A token is needed.", "Open the printed address.")
        answers = {
            "session": lambda: state.session,
            "devices": lambda: (
                documents.device_document(machine, rest, state.sequence) if rest else state.live()
            ),
            "processes": lambda: documents.processes_of(machine),
            "sources": lambda: documents.sources_of(machine),
            "findings": lambda: documents.findings_of(machine),
            "checks": lambda: to_document(machine.report),
            "topology": lambda: documents.topology_of(machine),
            "baselines": documents.baselines,
            "history": lambda: self._history(query),
            "poll": lambda: {
                "last_id": str(state.sequence),
                "gap": False,
                "events": [] if state.silent else [{"id": "1", "event": "live", "data": state.live()}],
            },
            "explain": lambda: encode(explain_topic(rest)) if explain_topic(rest) else None,
            "runs": lambda: self._runs(rest),
        }
        answer = answers[first]() if first in answers else None
        if isinstance(answer, str):
            self._send(200, answer.encode(), "text/plain; charset=utf-8")
        elif answer is None:
            self._problem(404, "not_found", f"There is no {path} here.", "Look at docs/api.md.")
        else:
            self._json(answer)
        return None

    def _history(self, query: dict[str, str]) -> dict[str, Any]:
        now = time.time()
        start, stop = float(query.get("from", now - 3600)), float(query.get("to", now))
        return documents.series_of(self.state.machine, start, stop, query.get("device"))

    def _runs(self, rest: str) -> Any:
        state = self.state
        if not rest:
            kinds = [
                _kind("preflight", "is this machine fit"),
                _kind("nccl-test", "a verified collective", PLAN_SCHEMA, presets=PRESETS),
                _kind("hang", "why a job stands still", HANG_SCHEMA, uses_gpus=False),
                _kind("bandwidth", "copies and products"),
            ]
            newest = list(reversed(state.runs.values()))
            return {"runs": newest, "kinds": kinds, "actions_allowed": state.session["actions_allowed"]}
        number, _, part = rest.partition("/")
        run = state.runs.get(number)
        if run is None:
            return None
        if part.startswith("comparison"):
            return documents.comparison_of(state.machine)
        if part == "events":
            told = enumerate(state.told_of_runs.get(number, []), 1)
            return {"run": number, "events": [{"number": place, "event": event} for place, event in told]}
        if part == "log":
            return state.logs.get(number, "")
        if part == "report":
            reports = {
                "nccl-test": lambda: documents.collective_report(run["outcome"] == "fail"),
                "train": documents.training_report,
                "preflight": lambda: to_document(state.machine.report),
                "run": lambda: to_document(make_job_run()),
            }
            return reports[run["kind"]]()
        return run

    def _stream(self) -> None:
        if self.state.session["role"] is None:
            return self._problem(401, "access.token", "A token is needed.", "Open the printed address.")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        server: Any = self.server
        try:
            while not server.closing.is_set() and self.state.session["role"] is not None:
                if self.state.silent:
                    self.wfile.write(b": still here\n\n")
                else:
                    for name, data in self.state.tick():
                        line = f"id: {self.state.sequence}\nevent: {name}\ndata: {json.dumps(data)}\n\n"
                        self.wfile.write(line.encode())
                self.wfile.flush()
                server.closing.wait(TICK_SECONDS)
        except OSError:
            pass  # the page was closed
        self.close_connection = True
        return None

    def _file(self, name: str) -> None:
        path = (STATIC / name).resolve()
        if not path.is_file() or STATIC.resolve() not in path.parents:
            return self._problem(404, "not_found", "There is no such file.", "")
        content = path.read_bytes()
        if name == "index.html":
            readable = self.state.session["role"] is not None or not self.state.session["token_required"]
            content = _inlined(content, "gpudiag-live", self.state.live() if readable else None)
            content = _inlined(
                content, "gpudiag-findings", documents.findings_of(self.state.machine) if readable else None
            )
            content = _inlined(content, "gpudiag-session", self.state.session)
        self._send(200, content, mimetypes.guess_type(name)[0] or "application/octet-stream")
        return None

    def _json(self, document: Any, status: int = 200) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _problem(self, status: int, code: str, detail: str, hint: str, **more: Any) -> None:
        body = {"type": "about:blank", "status": status, "code": code, "detail": detail, "hint": hint, **more}
        self._send(status, json.dumps(body).encode(), "application/problem+json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(content)


def _inlined(page: bytes, name: str, document: Any) -> bytes:
    text = json.dumps(document).replace("<", "\\u003c").encode()
    return page.replace(f'id="{name}">null<'.encode(), f'id="{name}">'.encode() + text + b"<")


class StubServer(ThreadingHTTPServer):
    """The stub: a state, and a way to end the streams."""

    daemon_threads = True

    def __init__(self, port: int, state: StubState) -> None:
        """Listen on loopback."""
        super().__init__(("127.0.0.1", port), StubHandler)
        self.state = state
        self.closing = threading.Event()

    def handle_error(self, *_: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""


@contextmanager
def stub_service(machine: documents.Machine, prefix: str = "") -> Iterator[tuple[str, StubState]]:
    """The address of a stub for that machine, and its state."""
    state = StubState(machine, prefix)
    server = StubServer(0, state)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}/", state
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


if __name__ == "__main__":
    StubServer(int(sys.argv[2]), StubState(documents.read_machine(sys.argv[1]))).serve_forever()
