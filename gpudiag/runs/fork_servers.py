"""The fork servers of one command: torch is imported once for each interpreter that the command uses."""

import os
from collections.abc import Mapping, Sequence
from types import TracebackType

from gpudiag.probe.guard import GuardedChild
from gpudiag.ranks.agents.fork_server import ForkServer

# DDP and the optimizers of torch load it, a second of work: once, before the ranks are forked.
TRAINING_MODULES = ("torch._dynamo",)
_QUESTION = "gpudiag.probe.torch.program:main"


class ForkServers:
    """A context manager around all that a command runs on ranks; at its end no fork is left."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        """None is started yet; `preload` are parts of torch for the ranks, imported while torch is asked."""
        self._preload = preload
        self._servers: dict[str | None, ForkServer] = {}

    def __enter__(self) -> "ForkServers":
        """The servers."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them all."""
        self.close()

    def close(self) -> None:
        """End all servers, with all that they forked; one that is asked for later is a new one."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def server(self, python: str | None, *, start: bool = True) -> ForkServer | None:
        """The server for that interpreter (None: this one), or None if unusable.

        Without `start` none is started.
        """
        if python not in self._servers and start:
            self._servers[python] = ForkServer(python)
        server = self._servers.get(python)
        return server if server is not None and server.is_usable else None

    def ask_torch(self, environment: Mapping[str, str], python: str | None) -> GuardedChild:
        """A child that asks torch, as `probe.torch.answer.start_torch`, in a fork of the server."""
        server = self.server(python)
        if server is None:
            from gpudiag.probe.torch.answer import start_torch

            return start_torch(environment, python)
        answer, answer_end = os.pipe()
        noise, noise_end = os.pipe()
        question = server.fork_question(_QUESTION, answer_end, noise_end, self._preload)
        os.close(answer_end)
        os.close(noise_end)
        return GuardedChild(server.pid, answer, noise, group=True, json=True, end=question.release)
