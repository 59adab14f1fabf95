"""A process that cannot take part in its job, and knows why: the leader of the others is told, and reports it for all."""

import os
import socket
import time

from gpudiag.errors import GpudiagError
from gpudiag.ranks.agents.announce import Announcer
from gpudiag.ranks.agents.astray import is_same_job
from gpudiag.ranks.agents.discovery import connect_agent
from gpudiag.ranks.agents.link import Link, LinkLostError, wait_readable
from gpudiag.ranks.agents.messages import Card, FailedRun, FinishedRun, Stray
from gpudiag.ranks.launchers import job_hosts, job_name

# The leader announces itself once it has missed somebody for 1.5 s, and may have been started a little later.
_FIND_SECONDS = 8.0
_VERDICT_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.1


def share_refusal(error: GpudiagError, rank: int, world_size: int) -> bool:
    """Whether the leader of the other ranks took it over that this one cannot start, and has ended the run for that.

    It is looked for on this machine's networks for 8 s.
    """
    card = Card(
        "",
        "",
        job_name(os.environ),
        os.getuid(),
        rank,
        world_size,
        socket.gethostname(),
        "",
        trouble=error.message,
        hint=error.hint,
    )
    announcer = Announcer(card, job_hosts(os.environ))
    announcer.start()
    try:
        until = time.monotonic() + _FIND_SECONDS
        while time.monotonic() < until:
            for heard in announcer.heard():
                one = heard.card
                if one.leads and one.port is not None and is_same_job(card, one):
                    link = connect_agent((heard.address, one.port), one.key)
                    if link is not None:
                        return _await_verdict(link, card)
            time.sleep(_LOOK_AGAIN_SECONDS)
    finally:
        announcer.close()
    return False


def _await_verdict(link: Link, card: Card) -> bool:
    """Whether the leader reports this process's refusal."""
    link.send(Stray(card))
    until = time.monotonic() + _VERDICT_SECONDS
    try:
        while (remaining := until - time.monotonic()) > 0:
            wait_readable((link.fileno(),), remaining)
            for message in link.receive():
                if isinstance(message, FinishedRun):
                    return any(
                        one.host == card.host and one.rank == card.rank for one in message.run.incidents
                    )
                if isinstance(message, FailedRun):
                    return True
    except LinkLostError:
        return False
    finally:
        link.close()
    return False
