"""Which machines there are, by name, file, DNS name or Slurm; asked again while the hub runs."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.fleet.addresses import (
    MOST_MACHINES,
    Address,
    MachineTokens,
    parse_address,
    read_machine_file,
)
from gpudiag.fleet.client import resolve
from gpudiag.time_limit import within

FILE_SECONDS = 5.0
DNS_SECONDS = 30.0
SLURM_SECONDS = 300.0
_ASK_SECONDS = 20.0
_Ask = Callable[[], Coroutine[Any, Any, "tuple[Address, ...] | None"]]  # None: as before
_HINT = "such as --hub gpu1,gpu2, --hub @FILE, --hub dns:gpudiag.gpudiag.svc, --hub slurm"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where machines are listed."""

    named: tuple[Address, ...] = ()
    files: tuple[Path, ...] = ()
    names: tuple[Address, ...] = ()  # DNS names, each of which stands for several addresses
    partitions: tuple[str, ...] = ()  # of Slurm; empty text: all
    tokens: MachineTokens = field(default_factory=MachineTokens)


def parse_sources(texts: Sequence[str], tokens: MachineTokens) -> Sources:
    """The sources that the values of `--hub` name; files are read once. Raises UsageError: none."""
    named, files, names, partitions = [], [], [], []
    for word in (word.strip() for text in texts for word in text.split(",") if word.strip()):
        if word.startswith("@"):
            files.append(Path(word[1:]).expanduser())
            read_machine_file(files[-1])
        elif word.startswith("dns:"):
            names.append(_dns_name(word))
        elif word == "slurm" or word.startswith("slurm:"):
            if shutil.which("sinfo") is None:
                raise UsageError("--hub slurm asks sinfo, which is not installed here", hint=_HINT)
            partitions.append(word.partition(":")[2])
        else:
            named.append(parse_address(word))
    if not (named or files or names or partitions):
        raise UsageError("--hub names no machine", hint=_HINT)
    if len({address.key for address in named}) > MOST_MACHINES:
        raise UsageError(f"--hub names {len(named)} machines", hint=f"at most {MOST_MACHINES}")
    return Sources(tuple(named), tuple(files), tuple(names), tuple(partitions), tokens)


def _dns_name(word: str) -> Address:
    address = parse_address(word.removeprefix("dns:"))
    if address.is_tls:
        raise UsageError(
            f"{word}: a certificate is issued for a name, and this name stands for several machines",
            hint="list the machines by their names, in a file: --hub @FILE",
        )
    return address


class Discovery:
    """The machines of all sources; a source that fails keeps what it listed last, and the reason."""

    def __init__(self, sources: Sources) -> None:
        """List what was named, before anything is asked."""
        self._sources = sources
        self._listed: dict[str, tuple[Address, ...]] = {"": sources.named}
        self._stamps: dict[Path, tuple[float, int]] = {}
        self.problems: dict[str, str] = {}
        self.changed = asyncio.Event()
        self.changed.set()

    def machines(self) -> tuple[Address, ...]:
        """The machines, each once and with its token, at most as many as a hub shows."""
        found = {address.key: address for listed in self._listed.values() for address in listed}
        kept = list(found.values())[:MOST_MACHINES]
        return tuple(replace(address, token=self._sources.tokens.of(address)) for address in kept)

    def notes(self) -> tuple[str, ...]:
        """Why a source cannot be read now."""
        found = {address.key for listed in self._listed.values() for address in listed}
        more = len(found) - MOST_MACHINES
        cut = [f"{len(found)} machines are listed, and {MOST_MACHINES} are shown"] if more > 0 else []
        return (*self.problems.values(), *cut)

    async def run(self) -> None:
        """Ask the sources until cancelled."""
        sources = self._sources
        asking = [
            *(self._repeat(f"@{path}", self._read_file(path), FILE_SECONDS) for path in sources.files),
            *(self._repeat(f"dns:{name.host}", self._read_name(name), DNS_SECONDS) for name in sources.names),
            *(
                self._repeat(f"slurm:{part}" if part else "slurm", self._read_slurm(part), SLURM_SECONDS)
                for part in sources.partitions
            ),
        ]
        await asyncio.gather(*asking)

    async def _repeat(self, source: str, ask: _Ask, seconds: float) -> None:
        while True:
            try:
                found = await within(_ASK_SECONDS, ask())
            except (UsageError, OSError, asyncio.TimeoutError) as error:
                words = error.message if isinstance(error, UsageError) else str(error) or "no answer in time"
                self._set_problem(
                    source, f"{source} cannot be read, and what it listed last is shown: {words}"
                )
            else:
                self._set_problem(source, "")
                if found is not None and found != self._listed.get(source):
                    self._listed[source] = found
                    self.changed.set()
            await asyncio.sleep(seconds)

    def _set_problem(self, source: str, words: str) -> None:
        if self.problems.get(source, "") != words:
            self.changed.set()
        if words:
            self.problems[source] = words
        else:
            self.problems.pop(source, None)

    def _read_file(self, path: Path) -> _Ask:
        async def read() -> tuple[Address, ...] | None:
            found = path.stat()
            stamp = found.st_mtime, found.st_size
            if self._stamps.get(path) == stamp:
                return None
            listed = read_machine_file(path)
            self._stamps[path] = stamp
            return listed

        return read

    def _read_name(self, name: Address) -> _Ask:
        async def read() -> tuple[Address, ...]:
            found = sorted(await resolve(name.host))
            return tuple(replace(name, name=place, host=place) for place in found)

        return read

    def _read_slurm(self, partition: str) -> _Ask:
        async def read() -> tuple[Address, ...]:
            words = [
                "sinfo",
                "--noheader",
                "--Node",
                "--format=%n",
                *(["--partition", partition] if partition else []),
            ]
            output = await _run(words)
            hosts = sorted({line.strip() for line in output.splitlines() if line.strip()})
            if not hosts:
                raise UsageError("sinfo lists no node")
            return tuple(parse_address(host) for host in hosts)

        return read


async def _run(words: list[str]) -> str:
    """What a program prints; it is ended with all that it started where it takes too long."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or [
            f"exit status {process.returncode}"
        ]
        raise UsageError(f"{words[0]}: {last[0][:200]}")
    return output.decode(errors="replace")
