"""The web page: its files from the package, with the first live numbers embedded."""

from importlib.resources import files
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from gpudiag.model.codec import dumps
from gpudiag_api.access import Access
from gpudiag_api.gate import role_of
from gpudiag_api.replies import Encoded, Problem, encode_body, reply
from gpudiag_api.service_routes import session_of

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_LIVE = '<script type="application/json" id="gpudiag-live">null</script>'
_FINDINGS = '<script type="application/json" id="gpudiag-findings">null</script>'
_SESSION = '<script type="application/json" id="gpudiag-session">null</script>'
_INDEX, _HUB_INDEX = "index.html", "hub.html"
# Of what is built; the system's list of all types is another half MiB.
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/vnd.microsoft.icon",
    ".woff2": "font/woff2",
}
_FIRST_SECONDS = 1.5  # a page with numbers a moment later is better than one without
_ABSENT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>gpudiag</title>
<p>This installation has no page: it was built without one. The numbers are at
<a href="api/v1/devices">api/v1/devices</a> and <a href="metrics">metrics</a>;
installing the wheel brings the page.
"""


class Page:
    """The files of `gpudiag_api/static`, read once."""

    def __init__(self, service: Access, folder: Path | None = None) -> None:
        """Read the package's own files, or those of `folder`."""
        self._service = service
        self._index = _HUB_INDEX if service.is_hub else _INDEX
        place = folder or Path(str(files("gpudiag_api"))) / "static"
        self._files = _read_files(place)

    async def answer(self, request: Request) -> Response:
        """The page, or one of its files. Raises Problem: there is no such file."""
        name = request.scope["path"].strip("/") or self._index
        if name == self._index:
            await self._service.wait_for_live(_FIRST_SECONDS)
            return self._answer_index(request)
        if name not in self._files or name in (_INDEX, _HUB_INDEX):
            raise Problem(
                404, "not_found", "there is nothing here", "the page is at the root, the API at api/v1"
            )
        lasting = name.startswith("assets/")
        cache = "public, max-age=31536000, immutable" if lasting else "no-cache"
        return reply(request, self._files[name], cache=cache)

    def _answer_index(self, request: Request) -> Response:
        given = self._files.get(self._index)
        text = _ABSENT if given is None else given.body.decode()
        if given is None and self._service.is_hub:
            text = text.replace("api/v1/devices", "api/v1/machines")
        session = dumps(session_of(self._service, request))
        text = text.replace(_SESSION, _SESSION.replace("null", _escaped(session)))
        live = self._service.live
        if live is not None and role_of(request) is not None:
            text = text.replace(_LIVE, _LIVE.replace("null", _escaped(live.body.decode())))
            text = text.replace(
                _FINDINGS, _FINDINGS.replace("null", _escaped(self._service.findings or "null"))
            )
        self._service.note_look()
        answer = reply(request, encode_body(text.encode(), "text/html; charset=utf-8"), cache="no-store")
        answer.headers["Content-Security-Policy"] = _POLICY
        answer.headers["X-Frame-Options"] = "DENY"
        return answer


def _read_files(place: Path) -> dict[str, Encoded]:
    """Each file by its path under `place`; symbolic links are left out."""
    found = {}
    for path in sorted(place.rglob("*")) if place.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            media_type = _MEDIA_TYPES.get(path.suffix, "application/octet-stream")
            found[path.relative_to(place).as_posix()] = encode_body(path.read_bytes(), media_type)
    return found


def _escaped(text: str) -> str:
    """JSON that cannot end the script element that it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
