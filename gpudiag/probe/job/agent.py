"""torchrun before it has ranks: its rendezvous, by command line, stack and the kernel's connections."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpudiag.linux.proc import read_stat
from gpudiag.linux.sockets import ESTABLISHED, LISTENING, Address, format_address, read_tcp_sockets
from gpudiag.model.job_agent import AgentSeen
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.untrusted_text import escape_controls, mask_text
from gpudiag.probe.job.find import FoundJob, after_launcher, is_agent
from gpudiag.probe.job.proc import Process
from gpudiag.probe.job.py_spy import RawFrame, read_stacks

_STACK_SECONDS = 5.0  # as for a look
# of children that have ended: a rank imports torch for longer, what torchrun itself starts takes less
_RAN_SECONDS = 1.0
# torchrun's own defaults (torch/distributed/run.py, torch 2.4 to 2.13).
_DEFAULTS = {
    "nnodes": "1:1",
    "rdzv_backend": "static",
    "rdzv_endpoint": "",
    "rdzv_id": "none",
    "node_rank": "",
    "master_addr": "127.0.0.1",
    "master_port": "29500",
    "rdzv_conf": "",
}
# After how many seconds torchrun gives up, and the key of --rdzv-conf that changes it: static's store
# (torch/distributed/launcher/api.py), the first connection to c10d's, and the wait for nodes of all others
# (torch/distributed/elastic/rendezvous).
_GIVES_UP_STATIC = ("timeout", 900.0)
_GIVES_UP_CONNECTING = ("read_timeout", 60.0)
_GIVES_UP_JOINING = ("join_timeout", 600.0)
_C10D_PORT = "29400"
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1", "[::1]", "ip6-localhost"))
_NODES = re.compile(r"(\d+)(?::(\d+))?$")
_RENDEZVOUS = "/distributed/elastic/rendezvous/"
_ENTERS = "SimpleElasticAgent._rendezvous"


@dataclass(frozen=True, slots=True)
class _Options:
    """Where an agent meets the others, by its command line and its variables."""

    backend: str
    endpoint: str
    run_id: str
    nodes: tuple[int, int]
    node_rank: int | None
    settings: Mapping[str, str]  # of --rdzv-conf

    @property
    def port(self) -> str:
        return self.endpoint.rpartition(":")[2]

    @property
    def host(self) -> str:
        return self.endpoint.rpartition(":")[0]


def look_at_agent(
    agent: Process, processes: Mapping[int, Process], uptime_seconds: float
) -> AgentSeen | None:
    """An agent of torchrun that has no ranks now.

    It is None where its command line names no rendezvous of nodes.
    """
    options = read_options(agent.words, agent.environment or {})
    if options is None:
        return None
    read = read_stacks(agent.pid, may_stop=False, timeout_seconds=_STACK_SECONDS)
    frames = () if isinstance(read, Missing) or agent.pid not in read[0] else read[0][agent.pid].frames
    sockets = list(read_tcp_sockets(agent.pid))
    connected = [one for one in sockets if one.state == ESTABLISHED]
    to_endpoint = [one for one in connected if str(one.remote_port) == options.port]
    own = {_host(one.local) for one in sockets}
    at_port = [one for one in sockets if str(one.local_port) == options.port]
    elsewhere = {_host(one.remote) for one in at_port if one.state == ESTABLISHED} - own
    hosts_endpoint = any(one.state == LISTENING for one in at_port)
    setting, gives_up_seconds = read_limit(options, is_connected=hosts_endpoint or bool(to_endpoint))
    nodes = (agent.environment or {}).get("SLURM_STEP_NUM_NODES", "")
    return AgentSeen(
        pid=agent.pid,
        command=agent.command,
        backend=options.backend,
        endpoint=escape_controls(mask_text(options.endpoint)),
        run_id=escape_controls(mask_text(options.run_id))[:80],
        least_nodes=options.nodes[0],
        most_nodes=options.nodes[1],
        node_rank=options.node_rank,
        started_seconds_ago=_ago(agent, uptime_seconds),
        waits_at=_where(frames),
        since_seconds=_entered(frames),
        agents_here=tuple(
            (one.pid, _ago(one, uptime_seconds))
            for one in processes.values()
            if is_agent(one) and _same(read_options(one.words, one.environment or {}), options)
        ),
        nodes_elsewhere=tuple(sorted(elsewhere)),
        hosts_endpoint=hosts_endpoint,
        is_connected=bool(to_endpoint),
        has_started_ranks=_seconds_of_children(agent.pid) >= _RAN_SECONDS,
        gives_up_seconds=gives_up_seconds,
        gives_up_setting=setting,
        is_loopback=options.host in _LOOPBACK,
        step_nodes=int(nodes) if nodes.isdecimal() else None,
    )


def waits_for_nodes(job: FoundJob) -> bool:
    """Whether a job is a torchrun of several nodes that has no rank here."""
    agent = job.launcher_process
    return agent is not None and not job.ranks and is_of_nodes(agent)


def is_of_nodes(process: Process) -> bool:
    """Whether a process is torchrun with several nodes by its command line."""
    return is_agent(process) and read_options(process.words, process.environment or {}) is not None


def read_options(words: Sequence[str], variables: Mapping[str, str]) -> _Options | None:
    """The rendezvous of torchrun's command line; None where it is for one node alone."""
    given = {name: variables.get(f"PET_{name.upper()}", default) for name, default in _DEFAULTS.items()}
    start = after_launcher(words)
    rest = iter(words[start:] if start is not None else ())
    for word in rest:
        if not word.startswith("--"):
            break  # the script
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if name == "standalone":
            return None
        if name in _FLAGS:
            continue
        value = value if equals else next(rest, "")
        if name in given:
            given[name] = value
    nodes = _NODES.fullmatch(given["nnodes"])
    if nodes is None:
        return None
    least, most = int(nodes[1]), int(nodes[2] or nodes[1])
    backend, endpoint = given["rdzv_backend"], given["rdzv_endpoint"]
    if not endpoint:
        endpoint = f"{given['master_addr']}:{given['master_port']}" if backend == "static" else "localhost"
    if ":" not in endpoint.rpartition("]")[2]:
        endpoint = f"{endpoint}:{_C10D_PORT if backend != 'static' else given['master_port']}"
    if most < 2:
        return None
    rank = int(given["node_rank"]) if given["node_rank"].isdecimal() else None
    pairs = (pair.partition("=") for pair in given["rdzv_conf"].split(","))
    settings = {name.strip(): value.strip() for name, equals, value in pairs if equals}
    return _Options(backend, endpoint, given["rdzv_id"], (least, most), rank, settings)


_FLAGS = frozenset(("module", "no_python", "run_path", "use_env", "virtual_local_rank"))


def read_limit(options: _Options, *, is_connected: bool) -> tuple[str, float]:
    """The key of --rdzv-conf, and the seconds after which torchrun gives up what it waits for."""
    if options.backend == "static":
        name, default = _GIVES_UP_STATIC
    elif options.backend == "c10d" and not is_connected:
        name, default = _GIVES_UP_CONNECTING
    else:
        name, default = _GIVES_UP_JOINING
    text = options.settings.get(name, "")
    return name, float(text) if text.isdecimal() and int(text) > 0 else default


def _same(one: _Options | None, other: _Options) -> bool:
    if one is None or (one.backend, one.run_id, one.port) != (other.backend, other.run_id, other.port):
        return False
    hosts = {one.host, other.host}
    return len(hosts) == 1 or hosts <= _LOOPBACK


def _ago(process: Process, uptime_seconds: float) -> float:
    return max(0.0, round(uptime_seconds - process.started_seconds, 1))


def _where(frames: Sequence[RawFrame]) -> str:
    """The outermost function of torch's rendezvous that a stack is in.

    It is the agent's own where the nodes exchange their ranks.
    """
    inside = [frame.function for frame in frames if _RENDEZVOUS in frame.file]
    if inside:
        return inside[-1].rpartition(".")[2]
    return "_rendezvous" if any(frame.function.endswith("._rendezvous") for frame in frames) else ""


def _entered(frames: Sequence[RawFrame]) -> Reading[float]:
    """Seconds since the agent entered the rendezvous, by the `start` of torch's own timing around it."""
    for frame in frames:
        values = {one.name: one.value for one in frame.variables}
        if values.get("key", "").strip("\"'") == _ENTERS:
            with suppress(ValueError):
                ago = time.time() - float(values.get("start", ""))
                if 0 <= ago < 1 << 30:
                    return round(ago, 1)
    return Missing(MissingReason.NOT_SUPPORTED, "its stack does not show it")


def _host(address: Address) -> str:
    """The address without its port: `10.0.0.2`, `[::1]`."""
    return format_address(address).rpartition(":")[0]


def _seconds_of_children(pid: int) -> float:
    """The processor time of children that have ended and were waited for."""
    with suppress(OSError, ValueError, IndexError):
        return read_stat(pid).children_cpu_seconds
    return 0.0
