"""Four machines on one: network namespaces on a bridge, each with a host name and an address of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_PREFIX = f"gd{os.getpid()}"
_NETWORK = "198.18.77"
_HOSTS_FOLDER = Path("/etc/netns")


@dataclass(frozen=True)
class Machine:
    """One namespace: a command in it is found by the others under `name`."""

    name: str
    address: str
    namespace: str

    def command(self, *words: str) -> tuple[str, ...]:
        """The words, as a command that runs on this machine."""
        rename = f'hostname {self.name} && exec "$@"'
        apart = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        return ("ip", "netns", "exec", self.namespace, *apart, "sh", "-c", rename, "sh", *words)


def switch_of(machine: Machine) -> str:
    """The namespace of the switch that the machine is connected to."""
    return f"{machine.namespace.rpartition('m')[0]}sw"


def bridge_port(machine: Machine) -> str:
    """The name of the machine's port there."""
    return f"p{machine.name[-1]}"


def enter(machine: Machine) -> tuple[str, ...]:
    """The words before a command that changes the machine's network."""
    return ("ip", "netns", "exec", machine.namespace)


@contextmanager
def four_machines(count: int = 4) -> Iterator[list[Machine]]:
    """machine1 to machine4, or as many as `count`; skips, or fails in CI, where namespaces cannot be made."""
    machines = [
        Machine(f"machine{number}", f"{_NETWORK}.{number}", f"{_PREFIX}m{number}")
        for number in range(1, count + 1)
    ]
    switch = f"{_PREFIX}sw"
    try:
        _require_namespaces(switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for machine in machines:
            _connect(machine, switch, machines)
        yield machines
    finally:
        for namespace in (*(machine.namespace for machine in machines), switch):
            subprocess.run(("ip", "netns", "delete", namespace), capture_output=True, check=False)
            shutil.rmtree(_HOSTS_FOLDER / namespace, ignore_errors=True)


def start_nccl_test(
    machine: Machine, rank: int, folder: Path, port: int, flags: Sequence[str], *, torchrun: bool
) -> "subprocess.Popen[str]":
    """`gpudiag nccl-test` as one of four ranks, by torchrun or by tcp://.

    It keeps its files in a folder of its own.
    """
    own = folder / machine.name
    own.mkdir(exist_ok=True)
    if torchrun:
        nodes = ("--nnodes", "4", "--node-rank", str(rank), "--nproc-per-node", "1")
        meeting = ("--master-addr", "machine1", "--master-port", str(port))
        start: tuple[str, ...] = ("-m", "torch.distributed.run", *nodes, *meeting)
        place: tuple[str, ...] = ()
    else:
        start = ()
        place = ("--rank", str(rank), "--world-size", "4", "--init-method", f"tcp://machine1:{port}")
    return subprocess.Popen(
        machine.command(sys.executable, *start, "-m", "gpudiag", "nccl-test", *flags, *place),
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "XDG_RUNTIME_DIR": str(own),
            "GPUDIAG_STATE_DIR": str(own),
            "GLOO_SOCKET_IFNAME": "eth0",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def filter_packets(machine: Machine, *rules: str) -> None:
    """Add rules for the packets that come in to that machine: `ip saddr 198.18.77.2 drop`."""
    lines = ("add table inet faults", "add chain inet faults in { type filter hook input priority 0; }")
    change_filter(machine, *lines, *(f"add rule inet faults in {rule}" for rule in rules))


def filter_sent_packets(machine: Machine, *rules: str) -> None:
    """Add rules for the packets that go out of that machine: `ip daddr 198.18.77.2 drop`."""
    lines = ("add table inet sent", "add chain inet sent out { type filter hook output priority 0; }")
    change_filter(machine, *lines, *(f"add rule inet sent out {rule}" for rule in rules))


def change_filter(machine: Machine, *lines: str) -> None:
    """Have nft do these lines on that machine; skips, or fails in CI, where there is no nft."""
    if shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin") is None and not os.environ.get("CI"):
        pytest.skip("packet filters need nft of nftables: tools/install-system-packages")
    subprocess.run(
        (*enter(machine), "nft", "-f", "-"),
        input="\n".join(lines) + "\n",
        check=True,
        capture_output=True,
        text=True,
    )


def add_interface(machine: Machine, name: str, *addresses: str, joined: bool = False) -> None:
    """A further interface of that machine with these addresses, which leads nowhere, or to the others if
    `joined`.
    """
    if joined:
        switch = f"{machine.namespace[:-2]}sw"
        port = f"{name}m{machine.name[-1]}"
        _ip(
            "-n",
            switch,
            "link",
            "add",
            port,
            "type",
            "veth",
            "peer",
            "name",
            name,
            "netns",
            machine.namespace,
        )
        _ip("-n", switch, "link", "set", port, "master", "br0", "up")
    else:
        _ip("-n", machine.namespace, "link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        _ip("-n", machine.namespace, "link", "set", f"{name}-end", "up")
    _ip("-n", machine.namespace, "link", "set", name, "up")
    for address in addresses:
        add_address(machine, name, address)


def add_address(machine: Machine, name: str, address: str) -> None:
    """A further address of an interface; one of IPv6 is usable at once."""
    at_once = ("nodad",) if ":" in address else ()
    _ip("-n", machine.namespace, "addr", "add", address, "dev", name, *at_once)


def _connect(machine: Machine, switch: str, machines: list[Machine]) -> None:
    folder = _HOSTS_FOLDER / machine.namespace
    folder.mkdir(parents=True)
    names = [f"{one.address} {one.name}" for one in machines]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
    _ip("netns", "add", machine.namespace)
    port = bridge_port(machine)
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", machine.namespace)
    _ip("-n", switch, "link", "set", port, "master", "br0", "up")
    _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "eth0")
    _ip("-n", machine.namespace, "link", "set", "eth0", "up")
    _ip("-n", machine.namespace, "link", "set", "lo", "up")


def _require_namespaces(name: str) -> None:
    done = subprocess.run(("ip", "netns", "add", name), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if os.environ.get("CI"):
        pytest.fail(f"no network namespaces: {done.stderr.strip()}")
    pytest.skip(f"needs network namespaces, as root: {done.stderr.strip()}")


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True, text=True)
