"""How long something that may heal by itself is borne with, beyond the moment at which it is suspected.

A suspicion costs nothing: what heals after it is told as a warning, with how long it lasted. Only what
outlasts the patience ends a run, because a bare loop would have gone on after a short outage too.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds beyond the suspicion, by what is suspected."""

    stopped_seconds: float  # a process that somebody holds
    behind_seconds: float  # a rank that has not come where the others wait
    inside_seconds: float  # ranks that are all inside collectives: an outage between them
    unheard_seconds: float  # an agent that says nothing


NONE = Patience(0.0, 0.0, 0.0, 0.0)

# A stop, and a rank that stays away, are certain within two and a half seconds: a machine that is paused
# for one and a half is not. TCP sends a lost segment again after 0.2, 0.6, 1.4, 3 and 6.2 s (RFC 6298,
# with Linux's minimum of 0.2 s), so that an outage of a second may hold ranks up for three.
USUAL = Patience(stopped_seconds=1.7, behind_seconds=1.2, inside_seconds=9.0, unheard_seconds=1.0)

# Where the user says how long the run may take: whatever heals within that is healed.
ENDLESS = Patience(math.inf, math.inf, math.inf, math.inf)
