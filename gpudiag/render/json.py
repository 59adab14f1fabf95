"""A report as its JSON document: one line, as every command prints its document."""

import json
from math import isfinite
from typing import Any

from gpudiag.model.codec import to_document
from gpudiag.model.report import Report


def render_json(report: Report) -> str:
    """The document `gpudiag.report/1`; a number that JSON does not have becomes the text `nan` or `inf`."""
    return json.dumps(_finite(to_document(report)), ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """The value with `nan` and `inf` as text: one bad measurement must not cost the whole report."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
