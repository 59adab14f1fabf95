"""The noun of a launcher without ranks yet: torchrun's agent, which waits for other nodes to meet it."""

from dataclasses import dataclass

from gpudiag.model.reading import NOT_ASKED, Reading


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """torchrun on this machine, by its command line, its stack and the connections to its endpoint."""

    pid: int
    command: str  # secrets masked
    backend: str  # c10d, static, etcd-v2 ...
    endpoint: str  # `10.0.0.1:29400`
    run_id: str
    least_nodes: int  # that it waits for
    most_nodes: int
    node_rank: int | None  # where its command line has it
    started_seconds_ago: float
    waits_at: str = ""  # the function of torch's rendezvous that it is in; empty where it is in none
    since_seconds: Reading[float] = NOT_ASKED  # when it entered the rendezvous
    agents_here: tuple[
        tuple[int, float], ...
    ] = ()  # of the same rendezvous, itself included: pid, and how many seconds ago it started
    nodes_elsewhere: tuple[str, ...] = ()  # addresses of other machines that are connected to its endpoint
    hosts_endpoint: bool = False  # a process of this machine listens there
    is_connected: bool = False  # it has a connection to the endpoint
    has_started_ranks: bool = False  # once, and they have ended
    # After which it gives up the step that it waits in: to reach the endpoint, or the wait for other nodes.
    gives_up_seconds: float = 600.0
    gives_up_setting: str = "join_timeout"  # of --rdzv-conf, that changes it
    is_loopback: bool = False  # its endpoint: only processes of its own machine meet there
    step_nodes: int | None = None  # machines of its Slurm step; None under no Slurm
