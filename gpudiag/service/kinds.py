"""The kinds of runs that the service may start, what a request may set for each, and the JSON Schema of that.

A plan over HTTP has the fields of the command line's plan except those that inject faults or name files,
programs or addresses. Every text is a plain name, so that nothing in a request is more than an argument.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.codec import decode, encode
from gpudiag.model.hang_plan import HangPlan
from gpudiag.model.job import HangReport
from gpudiag.model.option import ALL, Plan, PlanField, plan_fields
from gpudiag.model.plan import LEVELS, BandwidthPlan, NcclTestPlan, PreflightPlan
from gpudiag.model.report import CollectiveReport, Report
from gpudiag.model.training import TrainingPlan, TrainingReport

# --- the kinds

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+-]{0,63}")
_MAX_NAMES = 64
_MAX_NUMBER = 1 << 53  # beyond it JSON numbers are not exact


@dataclass(frozen=True, slots=True)
class RunKind:
    """One kind: its command, its plan, its time limit, and whether it uses GPUs."""

    name: str
    title: str
    plan_type: type[Plan]
    deadline_seconds: float
    hidden: tuple[str, ...]  # fields of the plan that are for the command line alone
    on_cpu: Callable[[Any], bool]  # whether the plan keeps away from GPUs
    disturbs: Callable[[Any], bool]  # whether sampling must pause during the run
    outputs: Callable[[Path], list[str]]  # flags that have it write its document to a file
    report_type: type  # of that document
    only_looks: bool = False  # it uses no GPU and disturbs no run, and runs beside all of them

    def parse_plan(self, given: Mapping[str, Any], *, force: bool = False) -> Plan:
        """The plan of a request, within its bounds; `force` is passed on where the command has that flag.

        Raises:
            UsageError: an unknown field, or a value that does not fit.
        """
        known = {field.name for field in plan_fields(self.plan_type)} - set(self.hidden)
        document = encode(dict(given))  # a RunRequest has tuples where JSON has lists
        for name, value in document.items():
            if name not in known:
                raise UsageError(
                    f"plan: {self.name} has no {name[:40]!r} here", hint=f"it has {', '.join(sorted(known))}"
                )
            _require_plain(name, value)
        plan: Plan = decode(self.plan_type, document)
        if force and "force" in known and not self.on_cpu(plan):
            # Without it the command itself would leave GPUs in use alone.
            plan = decode(self.plan_type, {**document, "force": True})
        return plan

    def plan_document(self, plan: Plan) -> dict[str, Any]:
        """The plan as a document, without what is hidden."""
        return {name: value for name, value in encode(plan).items() if name not in self.hidden}

    def deadline_of(self, plan: Any) -> float:
        """Seconds that a run of this plan may take: its own limit plus a margin, or the kind's."""
        own = getattr(plan, "timeout_seconds", None)
        return self.deadline_seconds if own is None else own + 60.0


def _require_plain(name: str, value: Any) -> None:
    values = value if isinstance(value, list) else [value]
    if len(values) > _MAX_NAMES:
        raise UsageError(f"plan: {name} names more than {_MAX_NAMES}")
    for one in values:
        if isinstance(one, str) and not _PLAIN.fullmatch(one):
            raise UsageError(f"plan: {name} holds {one[:40]!r}, which is not a plain name")
        if isinstance(one, int | float) and not -_MAX_NUMBER <= one <= _MAX_NUMBER:
            raise UsageError(f"plan: {name} is out of range")
        if not isinstance(one, str | int | float | bool | None):
            raise UsageError(f"plan: {name} is neither a name nor a number")


def _output(folder: Path) -> list[str]:
    return ["--output", str(folder / "report.json")]


def _preflight_output(folder: Path) -> list[str]:
    return ["--report", f"json={folder / 'report.json'}"]


_ALL_KINDS = (
    RunKind(
        "preflight", "May this machine train?", PreflightPlan, 7200.0, (),
        on_cpu=lambda plan: plan.level == "instant",
        disturbs=lambda plan: plan.level in LEVELS[2:],
        outputs=_preflight_output, report_type=Report,
    ),
    RunKind(
        "nccl-test", "Verify and time collectives over ranks.", NcclTestPlan, 3600.0, ("inject",),
        on_cpu=lambda plan: plan.backend == "gloo", disturbs=lambda _plan: True, outputs=_output,
        report_type=CollectiveReport,
    ),
    RunKind(
        "bandwidth", "Time copies and matrix products.", BandwidthPlan, 1200.0, (),
        on_cpu=lambda _plan: False, disturbs=lambda _plan: True, outputs=_output, report_type=Report,
    ),
    RunKind(
        "train", "Train a small model and compare with one process.", TrainingPlan, 3600.0, ("inject",),
        on_cpu=lambda plan: plan.backend == "gloo", disturbs=lambda _plan: False, outputs=_output,
        report_type=TrainingReport,
    ),
    RunKind(
        "hang", "Why does a running job stand still?", HangPlan, 90.0, ("watch",),
        on_cpu=lambda _plan: True, disturbs=lambda _plan: False, outputs=_output, report_type=HangReport,
        only_looks=True,
    ),
)  # fmt: skip


def run_kinds(names: tuple[str, ...]) -> dict[str, RunKind]:
    """The kinds among those commands, by name."""
    return {kind.name: kind for kind in _ALL_KINDS if kind.name in names}


# --- their schemas

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def plan_schema(kind: RunKind) -> dict[str, Any]:
    """The schema of the plans of that kind over HTTP, defaults included."""
    properties = {
        one.name: {**_property(one), "default": list(one.default) if one.is_list else one.default}
        for one in plan_fields(kind.plan_type)
        if one.name not in kind.hidden
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(one: PlanField) -> dict[str, Any]:
    words = [*one.option.choices, *((ALL,) if one.option.all_means == (ALL,) else ())]
    enumeration = {"enum": words} if words else {}
    if one.is_list:
        return {"type": "array", "items": {"type": "string", **enumeration}}
    name = _TYPES[one.value_type]
    schema: dict[str, Any] = {"type": [name, "null"] if one.is_optional else name, **enumeration}
    if one.option.low is not None:
        schema["minimum"], schema["maximum"] = one.option.low, one.option.high
    return schema
