"""The recipe of a localisation: when to look for the bad node or link, and on which nodes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpudiag.checks.ranks.between_hosts import NETWORK_PATH_LOSSY
from gpudiag.checks.ranks.collective import COLLECTIVE_SLOW
from gpudiag.checks.ranks.incident_kinds import COLLECTIVE_INTERRUPTED, COLLECTIVE_STALLED
from gpudiag.collectives.localise import NODES_AT_LEAST, LocaliseRequest
from gpudiag.model.codec import decode, encode
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.measure import Incident, IncidentKind, Localisation, Node
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.ranks.agents.fork_server import ForkServer
from gpudiag.ranks.agents.launch import run_ranks
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.inject import Fault, FaultKind
from gpudiag.ranks.node_labels import LabelFile, label_nodes
from gpudiag.ranks.rank_run import RankEvent, RankRun
from gpudiag.ranks.stages import DEFAULT_STAGE_SECONDS, RENDEZVOUS, Budgets
from gpudiag.runs.placement import Placement

_ENTRY = "gpudiag.collectives.localise_main:run"
# Faults of a run that may be the network's, and whose place is not known yet.
_LEAVE_OPEN = (COLLECTIVE_SLOW, COLLECTIVE_STALLED, COLLECTIVE_INTERRUPTED, NETWORK_PATH_LOSSY)
# After these the ranks could not meet again.
_ENDINGS = frozenset(
    {
        IncidentKind.DIED,
        IncidentKind.STOPPED,
        IncidentKind.RAISED,
        IncidentKind.NOT_STARTED,
        IncidentKind.UNREACHED,
        IncidentKind.SPLIT,
        IncidentKind.CUT_OFF,
        IncidentKind.PARTED,
        IncidentKind.NARROWED,
        IncidentKind.MISNAMED,
        IncidentKind.FILTERED,
        IncidentKind.CONFLICTING,
        IncidentKind.START_FAILED,
    }
)
# Of a slow network progress is printed so often.
PROGRESS_SECONDS = 5.0
_SEED = 37  # the same rounds each time: two runs can be compared


def nodes_of(run: RankRun) -> tuple[Node, ...]:
    """The hosts of the run with their ranks; where there is one host, its ranks act as nodes."""
    ranks_of: dict[str, list[int]] = {}
    for report in run.ranks:
        ranks_of.setdefault(report.host, []).append(report.rank)
    if len(ranks_of) == 1:
        return tuple(Node(report.host, (report.rank,)) for report in run.ranks)
    return tuple(Node(host, tuple(ranks)) for host, ranks in ranks_of.items())


def why_not_localised(run: RankRun) -> str | None:
    """Why no bad node or link can be found among those of this run; None if one can."""
    nodes = nodes_of(run)
    if len(nodes) < NODES_AT_LEAST:
        return (
            f"{NODES_AT_LEAST} nodes are needed to distinguish a bad one from its"
            f" partners, and this run has {len(nodes)}"
        )
    ended = [one for one in run.incidents if one.kind in _ENDINGS]
    return (
        f"the run itself ended early, because of rank {ended[0].rank} ({ended[0].kind.value})"
        if ended
        else None
    )


def is_localisation_due(
    run: RankRun, backend: str, judge: Callable[[], Sequence[Finding]], *, slow: bool = False
) -> bool:
    """Whether to localise unasked: what `judge` finds leaves open which node or link it is.

    `slow`: sizes were left out because an operation between the hosts took so long.

    Not among ranks on the processors of one machine, which have no network of their own.
    """
    one_host = len({report.host for report in run.ranks}) == 1
    if why_not_localised(run) is not None or (one_host and backend == "gloo"):
        return False
    wrong = [one for one in judge() if one.outcome in (Outcome.FAIL, Outcome.ERROR, Outcome.WARN)]
    codes = {kind.code for kind in _LEAVE_OPEN}
    return (bool(wrong) or slow) and all(finding.code in codes for finding in wrong)


def localise(
    run: RankRun,
    placement: Placement,
    environment: RankEnvironment | None,
    *,
    rendezvous_seconds: float,
    faults: Sequence[Fault] = (),
    python: str | None = None,
    notice: Callable[[str], None] | None = None,
    server: ForkServer | None = None,
    labels: LabelFile | None = None,
) -> tuple[Reading[Localisation], RankRun]:
    """What fresh ranks of the same agents found, or why they found nothing; with the run of these ranks.

    The server, if there is one, forks them. `labels` describe the fabric.

    Only `slow` of the faults concerns exchanges. Every process of a launch that ran `run` must call this.

    Raises:
        LaunchError: the ranks could not be started.
    """
    nodes = nodes_of(run)
    request = LocaliseRequest(placement.backend, _SEED, nodes)
    if labels is not None:
        request = LocaliseRequest(placement.backend, _SEED, *label_nodes(nodes, labels))
    began = time.monotonic()
    reported_at = began

    def report_round(event: RankEvent) -> None:
        nonlocal reported_at
        now = time.monotonic()
        if event.data.get("kind") == "round" and notice is not None and now - reported_at >= PROGRESS_SECONDS:
            reported_at = now
            notice(f"pairs of nodes exchange data: {event.data['round']} rounds after {now - began:.0f} s")

    again = run_ranks(
        _ENTRY,
        run_id="localise",
        world_size=run.world_size,
        arguments=encode(request),
        environment=environment,
        budgets=Budgets(stage_seconds={**DEFAULT_STAGE_SECONDS, RENDEZVOUS: rendezvous_seconds}),
        faults=tuple(fault for fault in faults if fault.kind is FaultKind.SLOW),
        on_event=report_round,
        notice=notice,
        variables=placement.variables,
        python=python,
        server=server,
    )
    if 0 in again.results:
        return decode(Localisation, again.results[0]), again
    return Missing(MissingReason.ERROR, _why_failed(again.incidents)), again


def add_localisation(run: RankRun, found: Reading[Localisation], again: RankRun) -> RankRun:
    """The first run, with the second one's injected faults, and what happened to that if it found nothing.

    What else happened in the second one is left out: there ranks wait for each other in turn, which is
    nobody's fault.
    """
    fired = {one.specification: one for one in again.injected if one.fired}
    injected = tuple(fired.get(one.specification, one) for one in run.injected)
    happened = again.incidents if isinstance(found, Missing) else ()
    return replace(run, injected=injected, incidents=(*run.incidents, *happened))


def _why_failed(incidents: Sequence[Incident]) -> str:
    if not incidents:
        return "the ranks of the exchange ended without a result"
    first = incidents[0]
    return f"in the exchange, rank {first.rank} on {first.host}: {first.kind.value}"
