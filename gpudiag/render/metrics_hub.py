"""The metrics of a hub: which machines answer, what they report, how their clocks are.

A machine's own metrics are at its own service.
"""

from gpudiag.model.hub import AnswerState, HubDocument
from gpudiag.render.exposition import Page


def render_hub_metrics(document: HubDocument, *, openmetrics: bool = False) -> str:
    """The page of a scrape, one series a machine and metric."""
    page = Page(openmetrics=openmetrics)
    labelled = [({"machine": machine.name}, machine) for machine in document.machines]
    page.add(
        "gpudiag_hub_machine_up",
        "gauge",
        "1 where the machine's service gave a report to the last question",
        [(labels, machine.state is AnswerState.ANSWERS) for labels, machine in labelled],
    )
    page.add(
        "gpudiag_hub_machine_verdict",
        "gauge",
        "1 for the verdict that the machine counts as: error while it gives no report",
        [
            ({**labels, "verdict": machine.verdict}, 1)
            for labels, machine in labelled
            if machine.verdict is not None
        ],
    )
    page.add(
        "gpudiag_hub_machine_last_report_timestamp_seconds",
        "gauge",
        "Unix time of the machine's last report, by the hub's clock",
        [
            (labels, machine.answered_at.timestamp())
            for labels, machine in labelled
            if machine.answered_at is not None
        ],
    )
    page.add(
        "gpudiag_hub_machine_clock_offset_seconds",
        "gauge",
        "How far the machine's clock is ahead of the hub's, known to a second",
        [
            (labels, machine.clock_offset_seconds)
            for labels, machine in labelled
            if machine.clock_offset_seconds is not None
        ],
    )
    return page.text()
