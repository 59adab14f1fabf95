"""Errors as application/problem+json (RFC 9457): what, and what to do next."""

import json
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gpudiag.errors import GpudiagError

MEDIA_TYPE = "application/problem+json"
_MAX_DETAIL_CHARACTERS = 500


class Problem(Exception):
    """A refused request; `members` are written besides the standard ones."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        hint: str = "",
        headers: dict[str, str] | None = None,
        **members: Any,
    ) -> None:
        """Refuse with that HTTP status; `code` is stable, `detail` is a sentence."""
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.headers = headers or {}
        self.members = members


def render_problem(problem: Problem, instance: str) -> Response:
    """The response for a problem with the request for the path `instance`."""
    document = {
        "type": "about:blank",
        "title": _title(problem.status),
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail[:_MAX_DETAIL_CHARACTERS],
        "hint": problem.hint[:_MAX_DETAIL_CHARACTERS],
        "instance": instance,
        **problem.members,
    }
    body = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(body, problem.status, headers, MEDIA_TYPE)


def problem_of(error: GpudiagError) -> Problem:
    """The problem for an error of gpudiag's own."""
    members = getattr(error, "members", None) or {}
    return Problem(error.http_status, error.code, error.message, error.hint, **members)


def answer_problem(request: Request, error: Exception) -> Response:
    """The response to an exception: a Problem, a GpudiagError, or a bug of gpudiag, named as such."""
    if isinstance(error, GpudiagError):
        error = problem_of(error)
    if not isinstance(error, Problem):
        error = Problem(500, "internal", "a bug of gpudiag, not of this machine", "see the service's log")
    return render_problem(error, request.url.path)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
