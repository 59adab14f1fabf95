"""Which format of the metrics a scraper asks for, by its Accept header (RFC 9110, 12.5.1)."""

_OPENMETRICS, _OPENMETRICS_VERSION = "application/openmetrics-text", "1.0.0"
_TEXT, _TEXT_VERSION = "text/plain", "0.0.4"
_ANY = ("*/*", "text/*")


def wants_openmetrics(accept: str | None) -> bool:
    """Whether OpenMetrics 1.0 is named, and liked no less than plain text; a wildcard means text."""
    wanted, text = 0.0, 0.0
    named_text = False
    for part in (accept or "").split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        said = dict(word.partition("=")[::2] for word in parameters)
        said = {name.strip(): value.strip().strip('"') for name, value in said.items()}
        quality = _quality(said.get("q", "1"))
        if kind == _OPENMETRICS and said.get("version", _OPENMETRICS_VERSION) == _OPENMETRICS_VERSION:
            wanted = max(wanted, quality)
        elif kind == _TEXT and said.get("version", _TEXT_VERSION) == _TEXT_VERSION:
            text, named_text = max(text, quality) if named_text else quality, True
        elif kind in _ANY and not named_text:  # a name says more than a wildcard
            text = max(text, quality)
    return wanted > 0 and wanted >= text


def _quality(text: str) -> float:
    """The weight of a media range, 0 to 1; 0, which is "not this", for what is no weight."""
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
