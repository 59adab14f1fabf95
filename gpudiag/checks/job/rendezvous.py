"""torchrun that waits for other nodes and has started no rank: its endpoint, the nodes, and since when."""

from gpudiag.checks.job import kinds
from gpudiag.checks.job.groups import describe_seconds
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.job import Job
from gpudiag.model.job_agent import AgentSeen
from gpudiag.model.reading import Missing

_NODE_MEANING = (
    "Start torchrun on the nodes that are missing, with the same --rdzv-endpoint, --rdzv-id and --nnodes;"
    " look at what it printed there. Check from there that the endpoint answers: `nc -vz {host} {port}`."
    " To wait for longer: `--rdzv-conf {setting}=SECONDS`."
)
_LOOPBACK_MEANING = (
    "Name the first machine as the endpoint on all of them: --rdzv-endpoint"
    ' "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):{port}"'
    " (with the static backend: --master-addr, --master-port and --node-rank $SLURM_NODEID)."
)
# Of torchrun's own limit: from then on there is hardly time for a node to start torchrun and to join.
_NEARLY = 0.9


def judge_agent(job: Job, limits: HangLimits) -> tuple[Finding, ...]:
    """The finding for an agent in its rendezvous without ranks; none where it is elsewhere, or has ranks."""
    agent = job.agent
    if agent is None or job.ranks or not agent.waits_at:
        return ()
    waited = _waited(agent)
    host, _, port = agent.endpoint.rpartition(":")
    # Each machine of the step has a rendezvous of its own, which nobody else joins.
    apart = agent.is_loopback and (agent.step_nodes or 0) >= agent.least_nodes and waited >= limits.still
    limit = _NEARLY * agent.gives_up_seconds if limits.node is None else limits.node
    long = apart or waited >= limit
    since = f", {describe_seconds(waited)} so far" if waited >= 1 else ""
    message = f"{_describe_wait(agent)}{since}; {_describe_joined(agent)}"
    if apart:
        message += f"; its Slurm step has {agent.step_nodes} machines, and each waits at its own {host}"
    else:
        message += "; only a torchrun of this machine can join there" if agent.is_loopback else ""
        message += f"; torchrun gives up after {describe_seconds(agent.gives_up_seconds)}"
    remedy = (
        _LOOPBACK_MEANING.format(port=port)
        if apart
        else _NODE_MEANING.format(host=host, port=port, setting=agent.gives_up_setting)
    )
    facts = (
        Evidence("launcher", f"pid {agent.pid}: {agent.command}", source="/proc"),
        Evidence("waits in", agent.waits_at, source="py-spy"),
        Evidence("nodes", agent.least_nodes, source="--nnodes"),
        Evidence("agents here", ", ".join(f"pid {pid}" for pid, _ in agent.agents_here), source="/proc"),
        Evidence(
            "connected from elsewhere",
            ", ".join(agent.nodes_elsewhere) or "no machine",
            source="/proc/PID/net/tcp",
        ),
    )
    kind = kinds.NEVER_JOINED if long else kinds.NOT_YET
    return (kind.finding(HostSubject(job.host), message, *facts, remedy=remedy),)


def _waited(agent: AgentSeen) -> float:
    """Since when it is in the rendezvous; of an agent that has never had ranks, its own age."""
    if not isinstance(agent.since_seconds, Missing):
        return agent.since_seconds
    return 0.0 if agent.has_started_ranks else agent.started_seconds_ago


def _describe_wait(agent: AgentSeen) -> str:
    """`torchrun (pid 12) waits in the rendezvous at 10.0.0.1:29400 (c10d, id 77) for 1 of 2 nodes`."""
    where = f"the rendezvous at {agent.endpoint} ({agent.backend}, id {agent.run_id})"
    if not (agent.hosts_endpoint or agent.is_connected):
        return (
            f"torchrun (pid {agent.pid}) cannot reach {where} of {_nodes(agent)}: no connection to it is open"
        )
    there = max(1, len(agent.agents_here)) + len(agent.nodes_elsewhere)
    lacks = agent.least_nodes - there
    if not agent.hosts_endpoint or lacks <= 0:
        return f"torchrun (pid {agent.pid}) waits in {where} for other nodes, of {_nodes(agent)}"
    return f"torchrun (pid {agent.pid}) waits in {where} for {lacks} of {_nodes(agent)}"


def _nodes(agent: AgentSeen) -> str:
    if agent.most_nodes != agent.least_nodes:
        return f"{agent.least_nodes} nodes at least ({agent.least_nodes} to {agent.most_nodes})"
    return f"{agent.least_nodes} nodes"


def _describe_joined(agent: AgentSeen) -> str:
    """Who is there, and that no rank is."""
    state = "its ranks of before have ended" if agent.has_started_ranks else "it has started no rank"
    if not agent.hosts_endpoint:
        return f"who has joined is known where the endpoint is; {state}"
    here = len(agent.agents_here)
    who = "only this node has joined" if here <= 1 and not agent.nodes_elsewhere else ""
    if not who:
        parts = (
            [f"{here} of this machine (pids {', '.join(str(pid) for pid, _ in agent.agents_here)})"]
            if here > 1
            else ["this node"]
        )
        parts += [f"{', '.join(agent.nodes_elsewhere)}"] if agent.nodes_elsewhere else []
        who = f"{' and '.join(parts)} have joined"
    return f"{who}, and {state}"
