"""The JSON Schema of a plan: the types of its fields, and the words and bounds that they keep to."""

from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from gpudiag.model import bandwidth_plan, plan, preflight_plan, training
from gpudiag.service.kinds import RunKind

_WORDS: dict[str, tuple[str, ...]] = {
    "backend": plan.BACKENDS,
    "op": plan.OPERATIONS,
    "reduce": plan.REDUCTIONS,
    "verify": plan.VERIFY_MODES,
    "level": preflight_plan.LEVELS,
    "test": bandwidth_plan.BANDWIDTH_TESTS,
    "fail_on": preflight_plan.FAIL_ON,
    "strategy": training.STRATEGIES,
    "workload": training.WORKLOADS,
    "optimizer": training.OPTIMIZERS,
}
_WORDS_OF_KIND: dict[tuple[str, str], tuple[str, ...]] = {
    ("nccl-test", "dtype"): (*plan.DTYPES, plan.ALL),
    ("train", "dtype"): training.TRAINING_DTYPES,
}
_BOUNDS: dict[str, tuple[float, float]] = {
    "nproc": (1, plan.MAX_NPROC),
    "min_bytes": (0, plan.MAX_SIZE_BYTES),
    "max_bytes": (0, plan.MAX_SIZE_BYTES),
    "step_factor": (2, plan.MAX_STEP_FACTOR),
    "iterations": (1, plan.MAX_ITERATIONS),
    "warmup": (0, plan.MAX_WARMUP),
    "timeout_seconds": (1, plan.MAX_TIMEOUT_SECONDS),
    "rendezvous_timeout_seconds": (1, plan.MAX_TIMEOUT_SECONDS),
    "steps": (1, training.MAX_STEPS),
    "batch_size": (1, training.MAX_BATCH_SIZE),
    "seed": (0, training.MAX_SEED),
    "expect_gpus": (0, preflight_plan.MAX_EXPECTED_GPUS),
    "at_least_gpus": (0, preflight_plan.MAX_EXPECTED_GPUS),
    "duration_seconds": (preflight_plan.MIN_DURATION_SECONDS, preflight_plan.MAX_DURATION_SECONDS),
}
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def plan_schema(kind: RunKind) -> dict[str, Any]:
    """The schema of the plans of that kind over HTTP, defaults included."""
    plan_type: Any = kind.plan_type
    hints = get_type_hints(plan_type)
    properties = {
        field.name: {**_property(kind.name, field.name, hints[field.name]), "default": _plain(field.default)}
        for field in fields(plan_type)
        if field.name not in kind.hidden
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(kind: str, name: str, hint: Any) -> dict[str, Any]:
    words = _WORDS_OF_KIND.get((kind, name), _WORDS.get(name))
    if get_origin(hint) is tuple:
        return {"type": "array", "items": {"type": "string", **({"enum": list(words)} if words else {})}}
    members = [member for member in get_args(hint) if member is not type(None)] or [hint]
    schema: dict[str, Any] = {"type": _TYPES[members[0]]}
    if type(None) in get_args(hint):
        schema["type"] = [schema["type"], "null"]
    if words:
        schema["enum"] = list(words)
    if name in _BOUNDS:
        schema["minimum"], schema["maximum"] = _BOUNDS[name]
    return schema


def _plain(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default
