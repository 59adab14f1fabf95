"""What a client accepts: the format of the metrics, and compressed answers (RFC 9110, 12.5.1 and 12.5.3)."""

from collections.abc import Iterator

_OPENMETRICS, _OPENMETRICS_VERSION = "application/openmetrics-text", "1.0.0"
_TEXT, _TEXT_VERSION = "text/plain", "0.0.4"
_ANY = ("*/*", "text/*")


def wants_openmetrics(accept: str | None) -> bool:
    """Whether OpenMetrics 1.0 is named, and liked no less than plain text; a wildcard means text."""
    wanted, text = 0.0, 0.0
    named_text = False
    for kind, parameters in _ranges(accept):
        quality = _quality(parameters.get("q", "1"))
        if kind == _OPENMETRICS and parameters.get("version", _OPENMETRICS_VERSION) == _OPENMETRICS_VERSION:
            wanted = max(wanted, quality)
        elif kind == _TEXT and parameters.get("version", _TEXT_VERSION) == _TEXT_VERSION:
            text, named_text = max(text, quality) if named_text else quality, True
        elif kind in _ANY and not named_text:  # a named type wins over a wildcard
            text = max(text, quality)
    return wanted > 0 and wanted >= text


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Whether a client takes gzip: named, or by `*`, and not with a weight of 0."""
    weights = {kind: _quality(parameters.get("q", "1")) for kind, parameters in _ranges(accept_encoding)}
    # Both are one (RFC 9110, 8.4.1.3).
    named = [weights[name] for name in ("gzip", "x-gzip") if name in weights]
    return max(named) > 0 if named else weights.get("*", 0.0) > 0


def _ranges(header: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    """What a header accepts, in lower case, each with its parameters."""
    for part in (header or "").split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        values = dict(word.partition("=")[::2] for word in parameters)
        yield kind, {name.strip(): value.strip().strip('"') for name, value in values.items()}


def _quality(text: str) -> float:
    """The weight of a media range, 0 to 1; 0, which is "not this", for what is no weight."""
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
