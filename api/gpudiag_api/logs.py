"""The service's log on standard error: short lines on a terminal, one JSON object a line elsewhere."""

import json
import logging
import sys
from datetime import UTC, datetime

from gpudiag.model.masking import mask_text
from gpudiag.model.printable import escape_controls, escape_steering

_FIELDS = ("method", "path", "status", "seconds", "client", "run")


class JsonLines(logging.Formatter):
    """One JSON object a line, with the fields of a request or a run."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; never a token: no record holds a header or a query, and secrets are masked."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": record.levelname.lower(), "message": mask_text(record.getMessage())}
        line |= {name: value for name in _FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["traceback"] = mask_text(self.formatException(record.exc_info))
        return json.dumps(
            line
        )  # in ASCII: what a client sends must not steer the terminal that shows the log


class ShortLines(logging.Formatter):
    """What a person wants to see on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The record in one line."""
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        text = f"{at} {record.getMessage()}"
        if getattr(record, "method", None):
            milliseconds = 1e3 * getattr(record, "seconds", 0.0)
            method, path, status = (getattr(record, name) for name in ("method", "path", "status"))
            text = f"{at} {status} {method} {path} {milliseconds:.1f} ms"
        text = escape_controls(mask_text(text))
        if record.exc_info:
            text += "\n" + escape_steering(mask_text(self.formatException(record.exc_info)))
        return text


def start_logging(*, terminal: bool) -> None:
    """Log to standard error; on a terminal only what is not routine."""
    # Neither format names the place or the process: a line for each request is not to cost what its answer does.
    logging._srcfile = None  # so the library's guide says, under "Optimization"
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ShortLines() if terminal else JsonLines())
    if terminal:
        handler.addFilter(_is_news)
    for name in ("gpudiag", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if name == "gpudiag" else logging.WARNING)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a person at a terminal wants to see it: refusals and changes, not every look."""
    return getattr(record, "method", "") not in ("GET", "HEAD") or getattr(record, "status", 0) >= 500
