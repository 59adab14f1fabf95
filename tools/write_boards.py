"""Write deploy/grafana/*.json: the boards of a fleet, of one machine, and of one GPU, linked with each other.

`python -m tools.write_boards`. A panel is a line here: its title, how it is drawn, its queries and unit;
Grafana's JSON of three boards is two thousand lines, which nobody reviews. tests/api/test_boards.py has a
Prometheus answer every query.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "grafana"
Json = dict[str, Any]
_SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24  # columns of a board

# A machine's series know it by `instance`; its name is a label of one series alone.
_NAMED = "* on (instance) group_left (host) gpudiag_build_info"
_HERE = 'instance=~"$instance"'
_GPU = f'{_HERE},gpu=~"$gpu"'
_IDENTITY = (
    "* on (instance, uuid) group_left (name, pci_bus_id, serial, driver_version)"
    f" max by (instance, uuid, name, pci_bus_id, serial, driver_version) (gpudiag_gpu_info{{{_HERE}}})"
)


@dataclass(frozen=True, slots=True)
class Query:
    """One query; `legend` names its lines, in a table its column."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: `kind` is Grafana's; `bad_from`: red from there; size in Grafana's units."""

    title: str
    kind: str
    queries: Sequence[Query]
    unit: str = "short"
    text: str = ""
    width: int = 12
    height: int = 8
    low: float | None = None
    high: float | None = None
    bad_from: float | None = None
    hidden: Sequence[str] = ()  # columns of a table that nobody needs
    renamed: Json = field(default_factory=dict)
    links: Json = field(default_factory=dict)  # of a column of a table: the address and what it is


def stat(
    title: str, expr: str, unit: str = "short", *, bad_from: float | None = None, legend: str = ""
) -> Panel:
    """One number, or one for each legend."""
    return Panel(title, "stat", (Query(expr, legend),), unit, width=4, height=4, bad_from=bad_from)


def lines(
    title: str,
    *queries: Query,
    unit: str = "short",
    low: float | None = 0.0,
    high: float | None = None,
    text: str = "",
) -> Panel:
    """Lines over time."""
    return Panel(title, "timeseries", queries, unit, text, low=low, high=high)


# --- what the boards show

_TO_MACHINE = ("/d/gpudiag-machine?var-host=${__data.fields.host}&${__url_time_range}", "The machine")
_TO_GPU = (
    "/d/gpudiag-gpu?var-host=${host}&var-gpu=${__data.fields.GPU}&${__url_time_range}",
    "The GPU",
)
_TO_CAUSE = (
    "http://${__data.fields.instance}/#/explain/${__data.fields.code}",
    "What it means, and what to do",
)
_NOT_SHOWN = ("Time", "__name__", "job", "instance", "Value", "blocks_jobs", "outcome", "bus_id", "uuid")

FLEET = (
    stat("Machines", "count(gpudiag_build_info)"),
    stat("GPUs", "count(gpudiag_gpu_up)"),
    stat("GPUs that do not answer", "sum(gpudiag_gpu_up == bool 0)", bad_from=1),
    stat("GPUs that fail their checks", 'count(gpudiag_gpu_status{state="fail"}) or vector(0)', bad_from=1),
    stat("Faults", "sum(gpudiag_finding) or vector(0)", bad_from=1),
    stat("Power", "sum(gpudiag_gpu_power_watts)", "watt"),
    Panel(
        "Faults that are present",
        "table",
        (Query("gpudiag_finding"),),
        text=(
            "What the checks find, each until it is repaired. A click on a host leads to"
            " its board, on a code to its page."
        ),
        width=24,
        height=9,
        hidden=tuple(name for name in _NOT_SHOWN if name != "instance"),
        links={"host": _TO_MACHINE, "code": _TO_CAUSE},
    ),
    Panel(
        "Machines",
        "table",
        (
            Query(f"sum by (host, instance) (gpudiag_gpu_up {_NAMED})", "GPUs that answer"),
            Query(f'sum by (host, instance) (gpudiag_checks{{outcome="fail"}} {_NAMED})', "checks that fail"),
            Query(f"avg by (host, instance) (gpudiag_gpu_utilization_ratio {_NAMED})", "utilisation"),
            Query(
                f'max by (host, instance) (gpudiag_gpu_temperature_celsius{{sensor="gpu"}} {_NAMED})',
                "hottest GPU (C)",
            ),
            Query(f"sum by (host, instance) (gpudiag_gpu_power_watts {_NAMED})", "power (W)"),
        ),
        text=(
            "A click on a host leads to its board, on an instance to the service's"
            " own page, where it is an address."
        ),
        width=24,
        hidden=("Time",),
        links={"host": _TO_MACHINE, "instance": ("http://${__data.fields.instance}/", "The service's page")},
    ),
    lines(
        "Utilisation by machine",
        Query(f"avg by (host) (gpudiag_gpu_utilization_ratio {_NAMED})", "{{host}}"),
        unit="percentunit",
        high=1,
    ),
    lines("Faults by machine", Query("sum by (host) (gpudiag_finding)", "{{host}}")),
)

MACHINE = (
    stat("NVML", f"gpudiag_nvml_state{{{_HERE}}} == 1", legend="{{state}}"),
    stat("Sampler", f"gpudiag_sampler_state{{{_HERE}}} == 1", legend="{{state}}"),
    stat(
        "Age of the numbers",
        f"time() - gpudiag_collect_last_success_timestamp_seconds{{{_HERE}}}",
        "s",
        bad_from=60,
    ),
    stat("Checks that fail", f'gpudiag_checks{{{_HERE},outcome="fail"}}', bad_from=1),
    stat("GPUs that do not answer", f"sum(gpudiag_gpu_up{{{_HERE}}} == bool 0)", bad_from=1),
    stat("Power", f"sum(gpudiag_gpu_power_watts{{{_HERE}}})", "watt"),
    Panel(
        "GPUs",
        "table",
        (Query(f"gpudiag_gpu_status{{{_HERE}}} {_IDENTITY}"),),
        text="A click on a GPU leads to its board.",
        hidden=("Time", "job", "instance", "Value"),
        renamed={"gpu": "GPU"},
        links={"gpu": _TO_GPU},
        width=24,
    ),
    Panel(
        "Who has the GPUs",
        "table",
        (Query(f"gpudiag_gpu_pod_info{{{_HERE}}}"), Query(f"gpudiag_gpu_job_info{{{_HERE}}}")),
        text="Pods by the kubelet, where the service may ask it; Slurm jobs by their processes.",
        hidden=("Time", "__name__", "job", "instance", "uuid", "Value", "Value #A", "Value #B"),
        renamed={"gpu": "GPU"},
        links={"gpu": _TO_GPU},
    ),
    Panel(
        "Faults that are present",
        "table",
        (Query(f"gpudiag_finding{{{_HERE}}}"),),
        hidden=tuple(name for name in (*_NOT_SHOWN, "host") if name != "instance"),
        links={"code": _TO_CAUSE},
    ),
    lines(
        "Utilisation",
        Query(f"gpudiag_gpu_utilization_ratio{{{_HERE}}}", "GPU {{gpu}}"),
        unit="percentunit",
        high=1,
    ),
    lines(
        "Memory in use",
        Query(
            f"gpudiag_gpu_memory_used_bytes{{{_HERE}}} / gpudiag_gpu_memory_total_bytes{{{_HERE}}}",
            "GPU {{gpu}}",
        ),
        unit="percentunit",
        high=1,
    ),
    lines("Power by GPU", Query(f"gpudiag_gpu_power_watts{{{_HERE}}}", "GPU {{gpu}}"), unit="watt"),
    lines(
        "Temperature",
        Query(f'gpudiag_gpu_temperature_celsius{{{_HERE},sensor="gpu"}}', "GPU {{gpu}}"),
        unit="celsius",
    ),
    lines("SM clock", Query(f'gpudiag_gpu_clock_hertz{{{_HERE},clock="sm"}}', "GPU {{gpu}}"), unit="hertz"),
    lines(
        "Tensor cores at work",
        Query(f"gpudiag_gpu_tensor_activity_ratio{{{_HERE}}}", "GPU {{gpu}}"),
        unit="percentunit",
        high=1,
        text="By NVML's GPM: Hopper and later.",
    ),
    Panel(
        "Slowed down",
        "state-timeline",
        (Query(f"max by (gpu) (gpudiag_gpu_throttle_active{{{_HERE}}})", "GPU {{gpu}}"),),
        text="1 while something holds the clocks down; the GPU's board shows what.",
        bad_from=1,
    ),
    Panel(
        "Xids",
        "table",
        (Query(f"time() - gpudiag_gpu_xid_last_timestamp_seconds{{{_HERE}}}"),),
        "s",
        text=(
            "Since the service started, and how long ago the last one was."
            " `gpudiag explain xid N` explains it."
        ),
        hidden=("Time", "job", "instance"),
        renamed={"Value": "ago", "gpu": "GPU"},
        links={"gpu": _TO_GPU},
    ),
)

GPU = (
    stat("State", f"gpudiag_gpu_status{{{_GPU}}} == 1", legend="{{state}}"),
    stat("Answers", f"gpudiag_gpu_up{{{_GPU}}}"),
    stat("Recovery action", f"gpudiag_gpu_recovery_action{{{_GPU}}}", bad_from=1),
    stat("Processes", f"gpudiag_gpu_processes{{{_GPU}}}"),
    stat(
        "Rows not replaced",
        f"gpudiag_gpu_remap_failure{{{_GPU}}} + gpudiag_gpu_remap_pending{{{_GPU}}}",
        bad_from=1,
    ),
    stat(
        "Uncorrected errors",
        f'sum(gpudiag_gpu_ecc_errors_total{{{_GPU},severity="uncorrected"}})',
        bad_from=1,
    ),
    Panel(
        "Which GPU",
        "table",
        (Query(f"gpudiag_gpu_info{{{_GPU}}}"),),
        text="A click on the UUID leads to its page in the service.",
        hidden=("Time", "__name__", "job", "instance", "Value"),
        links={"uuid": ("http://${instance}/#/gpu/${__data.fields.uuid}", "Its page in the service")},
        width=24,
        height=4,
    ),
    lines(
        "At work",
        Query(f"gpudiag_gpu_utilization_ratio{{{_GPU}}}", "utilisation"),
        Query(f"gpudiag_gpu_sm_activity_ratio{{{_GPU}}}", "SMs"),
        Query(f"gpudiag_gpu_tensor_activity_ratio{{{_GPU}}}", "tensor cores"),
        Query(f"gpudiag_gpu_dram_activity_ratio{{{_GPU}}}", "memory bandwidth"),
        unit="percentunit",
        high=1,
        text=(
            "Utilisation: the share of time in which a kernel ran. The others, by"
            " NVML's GPM, on Hopper and later."
        ),
    ),
    lines(
        "Memory",
        Query(f"gpudiag_gpu_memory_used_bytes{{{_GPU}}}", "used"),
        Query(f"gpudiag_gpu_memory_total_bytes{{{_GPU}}}", "total"),
        unit="bytes",
    ),
    lines(
        "Power and limit",
        Query(f"gpudiag_gpu_power_watts{{{_GPU}}}", "power"),
        Query(f"gpudiag_gpu_power_limit_watts{{{_GPU}}}", "limit"),
        unit="watt",
    ),
    lines("Temperatures", Query(f"gpudiag_gpu_temperature_celsius{{{_GPU}}}", "{{sensor}}"), unit="celsius"),
    lines("Clocks", Query(f"gpudiag_gpu_clock_hertz{{{_GPU}}}", "{{clock}}"), unit="hertz"),
    Panel(
        "What slows it down",
        "state-timeline",
        (Query(f"gpudiag_gpu_throttle_active{{{_GPU}}}", "{{reason}}"),),
        bad_from=1,
    ),
    lines(
        "Share of time slowed down",
        Query(f"rate(gpudiag_gpu_throttle_seconds_total{{{_GPU}}}[$__rate_interval])", "{{reason}}"),
        unit="percentunit",
        high=1,
    ),
    lines("PCIe traffic", Query(f"gpudiag_gpu_pcie_bytes_per_second{{{_GPU}}}", "{{direction}}"), unit="Bps"),
    lines(
        "NVLink traffic",
        Query(f"rate(gpudiag_gpu_nvlink_bytes_total{{{_GPU}}}[$__rate_interval])", "{{direction}}"),
        unit="Bps",
    ),
    lines(
        "Links",
        Query(f"gpudiag_gpu_pcie_link_width{{{_GPU}}}", "PCIe lanes"),
        Query(f"gpudiag_gpu_pcie_link_generation{{{_GPU}}}", "PCIe generation"),
        Query(f'gpudiag_gpu_nvlink_links{{{_GPU},state="active"}}', "NVLinks"),
        text="An idle GPU may run its PCIe link at a lower generation.",
    ),
    lines(
        "Errors on links, each minute",
        Query(f"60 * rate(gpudiag_gpu_nvlink_errors_total{{{_GPU}}}[$__rate_interval])", "NVLink {{type}}"),
        Query(f"60 * rate(gpudiag_gpu_pcie_replay_total{{{_GPU}}}[$__rate_interval])", "PCIe replays"),
    ),
    lines(
        "Memory errors since the driver was loaded",
        Query(f"gpudiag_gpu_ecc_errors_total{{{_GPU}}}", "{{severity}} ({{scope}})"),
        Query(f"gpudiag_gpu_remapped_rows{{{_GPU}}}", "rows replaced ({{cause}})"),
    ),
)


# --- as Grafana has it


def boards() -> dict[str, Json]:
    """Each board by the name of its file."""
    host = _variable("host", "label_values(gpudiag_build_info, host)", "Machine")
    instance = {
        **_variable("instance", 'label_values(gpudiag_build_info{host="$host"}, instance)', "Instance"),
        "hide": 2,  # it follows from the host
    }
    gpu = _variable("gpu", f"label_values(gpudiag_gpu_up{{{_HERE}}}, gpu)", "GPU")
    page: Json = {
        "title": "The service's page",
        "type": "link",
        "url": "http://${instance}/",
        "targetBlank": True,
    }
    return {
        "gpudiag.json": _board("gpudiag", "GPUs: the fleet (gpudiag)", FLEET, (), ()),
        "gpudiag-machine.json": _board(
            "gpudiag-machine", "GPUs: one machine (gpudiag)", MACHINE, (host, instance), (page,)
        ),
        "gpudiag-gpu.json": _board(
            "gpudiag-gpu", "GPUs: one GPU (gpudiag)", GPU, (host, instance, gpu), (page,)
        ),
    }


def board_text(board: Json) -> str:
    """The file of a board."""
    return json.dumps(board, indent=2) + "\n"


def _board(
    uid: str, title: str, panels: Sequence[Panel], variables: Sequence[Json], links: Sequence[Json]
) -> Json:
    others: Json = {
        "title": "Fleet, machine, GPU",
        "type": "dashboards",
        "tags": ["gpudiag"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
    }
    source: Json = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["gpu", "gpudiag"],
        "schemaVersion": 39,
        "version": 2,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [others, *links],
        "templating": {"list": [source, *variables]},
        "panels": _placed(panels),
    }


def _variable(name: str, query: str, label: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "sort": 3,
    }


def _placed(panels: Sequence[Panel]) -> list[Json]:
    """The panels from left to right, a new row where one no longer fits."""
    placed, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _WIDTH:
            x, y, height = 0, y + height, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        placed.append({"id": number, "gridPos": place, **_drawn(panel)})
        x, height = x + panel.width, max(height, panel.height)
    return placed


def _drawn(panel: Panel) -> Json:
    is_table = panel.kind == "table"
    defaults: Json = {"unit": panel.unit}
    if panel.low is not None:
        defaults["min"] = panel.low
    if panel.high is not None:
        defaults["max"] = panel.high
    if panel.bad_from is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.bad_from}]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    drawn: Json = {
        "title": panel.title,
        "type": panel.kind,
        "datasource": _SOURCE,
        "targets": [_target(number, query, instant=is_table) for number, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults, "overrides": [_link(*one) for one in panel.links.items()]},
    }
    if panel.text:
        drawn["description"] = panel.text
    if panel.kind == "stat":
        drawn["options"] = {"textMode": "name" if panel.queries[0].legend else "value"}
    if is_table:
        drawn["transformations"] = _as_table(panel)
    return drawn


def _target(number: int, query: Query, *, instant: bool) -> Json:
    target: Json = {"refId": chr(ord("A") + number), "expr": query.expr, "legendFormat": query.legend}
    return {**target, "instant": True, "range": False, "format": "table"} if instant else target


def _as_table(panel: Panel) -> list[Json]:
    renamed = dict(panel.renamed)
    if len(panel.queries) > 1:
        for number, query in enumerate(panel.queries):
            if query.legend:
                renamed[f"Value #{chr(ord('A') + number)}"] = query.legend
    excluded = dict.fromkeys(panel.hidden, True)
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": excluded, "renameByName": renamed}},
    ]


def _link(column: str, address: tuple[str, str]) -> Json:
    """A column of a table whose cells lead somewhere; found by its name before and after it is renamed."""
    url, title = address
    return {
        "matcher": {"id": "byRegexp", "options": f"/^{column}$/i"},
        "properties": [{"id": "links", "value": [{"title": title, "url": url}]}],
    }


def main() -> None:
    """Write the files."""
    for name, board in boards().items():
        (FOLDER / name).write_text(board_text(board))


if __name__ == "__main__":
    main()
