"""On which machines processes are that meet at a file (`--init-method file:///PATH`): by cards beside it.

The file itself shows nothing of that, and ranks of one machine are started otherwise than those of several.
"""

import atexit
import contextlib
import ipaddress
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gpudiag.errors import LaunchError
from gpudiag.linux.interfaces import list_addresses
from gpudiag.linux.namespaces import read_machine
from gpudiag.ranks.agents.own_addresses import NOTICE_SECONDS
from gpudiag.ranks.environment import RankEnvironment

_FOLDER_SUFFIX = ".gpudiag"
_LOOK_AGAIN_SECONDS = 0.05
# Processes that are started together are all there by then; later ones may be on other machines.
_TOGETHER_SECONDS = 3.0
# What an ended launch left behind, by the clock of the file system.
_STALE_SECONDS = 600.0
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class FileCard:
    """One process: its machine, and the addresses of that with their networks, the best first."""

    rank: int
    host: str
    network: str  # the same for processes that share network interfaces
    addresses: tuple[str, ...]  # ADDRESS/PREFIX


def place_by_file(
    environment: RankEnvironment | None,
    patience_seconds: float,
    notice: Callable[[str], None] | None = None,
    variables: Mapping[str, str] = os.environ,
) -> RankEnvironment | None:
    """The place of this process where it meets others at a file: with rank 0's machine, if there are several.

    Any other environment stays as it is. `notice` is called after 5 s with what is waited for.

    Raises:
        LaunchError: rank 0 has put no card beside the file after `patience_seconds`.
    """
    if environment is None or environment.world_size < 2 or not environment.init_method.startswith("file:"):
        return environment
    path = Path(unquote(urlsplit(environment.init_method).path))
    own = FileCard(environment.rank, socket.gethostname(), read_machine().network, _addresses(variables))
    try:
        folder = _put(own, path)
    except OSError:  # where no file can be made, the ranks report why
        return environment
    began = time.monotonic()
    while True:
        cards = _read_cards(folder, environment.world_size)
        waited = time.monotonic() - began
        if len(cards) == environment.world_size or (waited >= _TOGETHER_SECONDS and 0 in cards):
            return _placed(environment, own, cards, fixed="LOCAL_RANK" in variables)
        if notice is not None and waited >= NOTICE_SECONDS:
            notice(f"rank {own.rank} on {own.host} waits for rank 0, which has not come to {path} yet")
            notice = None
        if waited >= patience_seconds:
            raise LaunchError(
                f"rank 0 has not come to {path}, where rank {own.rank} on {own.host} waits for it",
                hint=(
                    "is that path on a file system that all machines of the job share? `df`"
                    " and it on each of them shows it"
                ),
            )
        time.sleep(_LOOK_AGAIN_SECONDS)


def _placed(
    environment: RankEnvironment, own: FileCard, cards: Mapping[int, FileCard], *, fixed: bool
) -> RankEnvironment:
    here = [rank for rank, card in cards.items() if card.network == own.network]
    if len(here) == environment.world_size:
        return environment
    elsewhere = sum(rank < own.rank for rank in cards if rank not in here)
    most = environment.world_size - 1  # not all are here, as far as can be seen
    local_rank = environment.local_rank if fixed else min(own.rank - elsewhere, most - 1)
    return replace(
        environment,
        local_rank=local_rank,
        local_world_size=min(max(len(here), local_rank + 1), most),
        master=_reachable(cards[0].addresses, own.addresses) or cards[0].host,
    )


def _reachable(theirs: tuple[str, ...], own: tuple[str, ...]) -> str | None:
    """The first of rank 0's addresses in a network that this machine is in too; else the first.

    It is None without any.
    """
    networks = {ipaddress.ip_interface(one).network for one in own}
    shared = (one for one in theirs if ipaddress.ip_interface(one).network in networks)
    best = next(shared, next(iter(theirs), None))
    return None if best is None else best.partition("/")[0]


def _addresses(variables: Mapping[str, str]) -> tuple[str, ...]:
    """This machine's addresses with their networks, without loopback.

    Those of the interface for ranks come first.
    """
    wanted = {variables[name].lstrip("=") for name in _INTERFACE_VARIABLES if variables.get(name)}
    try:
        found = [one for one in list_addresses() if "%" not in one.address]
    except OSError:
        return ()
    found.sort(key=lambda one: one.interface not in wanted)
    texts = (f"{one.address}/{one.prefix}" for one in found)
    return tuple(text for text in texts if not ipaddress.ip_interface(text).is_loopback)


def _put(own: FileCard, path: Path) -> Path:
    """The folder of the cards beside the file, with this process's in it until it ends.

    Raises:
        OSError: no file can be made there.
    """
    folder = path.with_name(path.name + _FOLDER_SUFFIX)
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=folder)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(own), file)
    card = folder / f"rank{own.rank}.json"
    Path(name).rename(card)
    atexit.register(_take_away, card, card.stat().st_ino)
    return folder


def _take_away(card: Path, inode: int) -> None:
    with contextlib.suppress(OSError):
        if card.stat().st_ino == inode:
            card.unlink()
        card.parent.rmdir()  # by the last one; else it is not empty


def _read_cards(folder: Path, world_size: int) -> dict[int, FileCard]:
    """The cards of the launch, by rank; without what an earlier launch left behind."""
    found: dict[int, FileCard] = {}
    dated: dict[int, float] = {}
    for rank in range(world_size):
        path = folder / f"rank{rank}.json"
        try:
            data = json.loads(path.read_text())
            found[rank] = FileCard(
                rank, str(data["host"]), str(data["network"]), tuple(map(str, data["addresses"]))
            )
            dated[rank] = path.stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # not there yet, or no card
            found.pop(rank, None)
    newest = max(dated.values(), default=0.0)
    return {rank: card for rank, card in found.items() if newest - dated[rank] < _STALE_SECONDS}
