"""What a request may hold, as its route declares it."""

import asyncio
import json

import pytest
from starlette.requests import Request
from starlette.responses import Response

from gpudiag_api.replies import Problem
from gpudiag_api.routes import Parameter, Router, choice, flag, misfit, part, read_json, text
from gpudiag_api.run_routes import _NEW_RUN, run_request

WHOLE = {"type": "integer", "minimum": 0, "maximum": 9}


@pytest.mark.parametrize(
    ("parameter", "given", "value"),
    [
        (text("since", 5), None, None),
        (text("since", 5), "", ""),
        (text("since", 5), "abcde", "abcde"),
        (choice("format", ("json", "csv"), "json"), None, "json"),
        (choice("format", ("json", "csv"), "json"), "csv", "csv"),
        (flag("full"), None, False),
        *((flag("full"), word, True) for word in ("1", "true", "True", "on", "yes")),
        *((flag("full"), word, False) for word in ("0", "false", "OFF", "no")),
        (Parameter("step", {"type": "number", "minimum": 1, "maximum": 10}), "2.5", 2.5),
        (Parameter("since", {**WHOLE, "default": 0}), None, 0),
        (Parameter("since", WHOLE), "9", 9),
        (part("identity", "[0-9a-z-]{1,4}"), "a-1", "a-1"),
    ],
)
def test_what_a_parameter_allows(parameter, given, value):
    assert parameter.read(given) == value


@pytest.mark.parametrize(
    ("parameter", "given"),
    [
        (text("since", 5), "abcdef"),
        (Parameter("before", {"type": "string"}, is_required=True), None),
        (choice("format", ("json", "csv"), "json"), "xml"),
        (choice("format", ("json", "csv"), "json"), ""),
        (flag("full"), "perhaps"),
        (flag("full"), ""),
        *((Parameter("step", {"type": "number", "minimum": 1, "maximum": 10}), text)
          for text in ("0", "11", "nan", "inf", "-inf", "1e400", "two", "")),
        *((Parameter("since", WHOLE), text) for text in ("-1", "10", "1.0", "0x1", "", "1e2")),
        *((part("identity", "[0-9a-z-]{1,4}"), text) for text in ("A", "abcde", "a/b", "a\n")),
    ],
)  # fmt: skip
def test_what_it_does_not(parameter, given):
    with pytest.raises(Problem) as refused:
        parameter.read(given)
    assert (refused.value.status, refused.value.code) == (422, "request.invalid")
    assert refused.value.detail.startswith(f"{parameter.place}.{parameter.name}: ")


GOOD = {"kind": "nccl-test", "plan": {"op": ["all_reduce"], "max_bytes": 1, "check": True, "x": None}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "body: [] is not an object"),
        (None, "body: None is not an object"),
        ({}, "body: kind is missing"),
        ({"kind": 3}, "body.kind: 3 is not a text"),
        ({"kind": "x" * 33}, "body.kind: it has more than 32 characters"),
        ({"kind": "a", "command": "id"}, "body: 'command' is not known"),
        ({"kind": "a", "queue": 1}, "body.queue: 1 is not true or false"),
        ({"kind": "a", "queue": "true"}, "body.queue: 'true' is not true or false"),
        ({"kind": "a", "gpus": "0"}, "body.gpus: '0' is not a list"),
        ({"kind": "a", "gpus": [0]}, "body.gpus.0: 0 is not a text"),
        ({"kind": "a", "gpus": ["0"] * 65}, "body.gpus: it lists more than 64"),
        ({"kind": "a", "plan": {"x": {}}}, "body.plan.x: {} is not"),
        ({"kind": "a", "plan": {"x": ["y" * 65]}}, "body.plan.x.0: it has more than 64 characters"),
        ({"kind": "a", "plan": {"x" * 41: 1}}, "body.plan: it has more than 40 characters"),
        (
            {"kind": "a", "plan": {str(number): 1 for number in range(41)}},
            "body.plan: it has more than 40 members",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_named_with_its_place(body, words):
    wrong = misfit(body, _NEW_RUN, "body")
    assert wrong is not None
    assert wrong[0].startswith(words)


def test_a_body_that_fits_is_what_it_asks_for():
    assert misfit(GOOD, _NEW_RUN, "body") is None
    asked = run_request({**GOOD, "gpus": ["0"], "queue": True})
    assert asked.plan == {"op": ("all_reduce",), "max_bytes": 1, "check": True, "x": None}
    assert (asked.gpus, asked.queue, asked.force, asked.interpreter) == (("0",), True, False, None)
    for value in (1, 1.5):  # true is no number, and a number not true
        assert misfit(value, {"type": "boolean"}, "x") is not None
        assert misfit(value > 0, {"type": ["integer", "number"]}, "x") is not None


def request(path: str, query: str = "", body: bytes = b"") -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []}
    return Request(scope, receive)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 422), (b"{", 400), (b"\xff\xfe", 400), (b"[" * 20_000, 400), (b"null", 422), (b"{}", 422)],
)
def test_a_body_is_read_whole_or_refused(body, status):
    with pytest.raises(Problem) as refused:
        asyncio.run(read_json(request("/", body=body), _NEW_RUN))
    assert refused.value.status == status
    assert asyncio.run(read_json(request("/", body=json.dumps(GOOD).encode()), _NEW_RUN)) == GOOD


def test_a_route_passes_the_parts_of_its_path_and_its_query_by_name():
    router = Router("machine", "/api/v1")

    @router.add(
        "GET", "/a.b/{name}/log", part("name", "[a-z]+"), text("from", 9, "start"), answers={}, summary=""
    )
    async def read(_request: Request, name: str, start: str | None) -> Response:
        return Response(f"{name} {start}")

    (route,) = router.routes
    assert route.pattern.fullmatch("/api/v1/aXb/x/log") is None  # a dot is a dot
    assert route.pattern.fullmatch("/api/v1/a.b/x/y/log") is None
    path = "/api/v1/a.b/x/log"
    found = route.pattern.fullmatch(path)
    assert found is not None
    answered = asyncio.run(route.answer(request(path, "from=1&from=2&other=3"), found.groupdict()))
    assert answered.body == b"x 2"
