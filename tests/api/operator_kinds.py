"""The fields that the Prometheus operator's kinds have, as JSON Schemas: those of its CRDs that our manifests
may need.

From example/prometheus-operator-crd of prometheus-operator, read 2026-11; the API server drops or refuses any
other field.
"""

from typing import Any

_DURATION = {
    "type": "string",
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_WORDS = {"type": "object", "additionalProperties": _TEXT}
_ACTIONS = tuple(
    "replace keep drop hashmod labelmap labeldrop labelkeep lowercase uppercase keepequal dropequal".split()
)


def _closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


_RELABELING = _closed(
    action={"enum": list(_ACTIONS)},
    regex=_TEXT,
    replacement=_TEXT,
    separator=_TEXT,
    sourceLabels=_TEXTS,
    targetLabel=_TEXT,
)
_ENDPOINT = _closed(
    ("port",),
    authorization=_closed(credentials=_closed(("key",), name=_TEXT, key=_TEXT), type=_TEXT),
    honorLabels={"type": "boolean"},
    interval=_DURATION,
    metricRelabelings=_list(_RELABELING),
    params={"type": "object", "additionalProperties": _TEXTS},
    path=_TEXT,
    port=_TEXT,
    relabelings=_list(_RELABELING),
    scheme={"enum": ["http", "https"]},
    scrapeTimeout=_DURATION,
    tlsConfig={"type": "object"},
)
_SELECTOR = _closed(matchLabels=_WORDS, matchExpressions={"type": "array"})
_RULE = _closed(
    ("expr",),
    alert=_TEXT,
    annotations=_WORDS,
    expr={"type": ["string", "integer"]},
    keep_firing_for=_DURATION,
    labels=_WORDS,
    record=_TEXT,
    **{"for": _DURATION},
)
_GROUP = _closed(
    ("name",),
    name={"type": "string", "minLength": 1},
    interval=_DURATION,
    labels=_WORDS,
    limit={"type": "integer"},
    query_offset=_DURATION,
    rules=_list(_RULE),
)

SPECS = {
    "ServiceMonitor": _closed(
        ("endpoints", "selector"), endpoints=_list(_ENDPOINT), jobLabel=_TEXT,
        namespaceSelector={"type": "object"},
        selector=_SELECTOR, targetLabels=_TEXTS,
    ),
    "PodMonitor": _closed(
        ("selector", "podMetricsEndpoints"), podMetricsEndpoints=_list(_ENDPOINT), jobLabel=_TEXT,
        namespaceSelector={"type": "object"}, selector=_SELECTOR, podTargetLabels=_TEXTS,
    ),
    "PrometheusRule": _closed(("groups",), groups=_list(_GROUP)),
}  # fmt: skip
