"""Whose end a run's end goes back to: by the order of ends, each rank's own error, and who waited for whom.

A rank that fails because another is gone has an error that names this, perhaps before that one has ended. So
the first rank with an error of its own is the cause; else the rank that ended well while others waited for
it; then the one that was not seen waiting when the others gave up.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gpudiag.compat import UTC
from gpudiag.model.job_run import RankEnd, RankRecord

# Errors of a rank because another one is gone (gloo, NCCL, torch's store), in versions 2.4 to 2.13.
_ECHO = re.compile(
    r"Connection (closed|reset)|Broken pipe|remote (process|peer) (exited|closed)|ncclRemoteError|"
    r"NCCL watchdog"
    r"|Timed out waiting|SignalException|DistStoreError|TCPStore|recvValue failed|remote worker crashing"
    r"|Socket Timeout|wait timeout|Watchdog caught collective operation timeout|"
    r"NCCL communicator was aborted",
    re.IGNORECASE,
)
_GAVE_UP = re.compile(r"Timed out|timeout|NCCL watchdog", re.IGNORECASE)
# The kernel reports ends in any order where they are as near to each other.
_NEAR = timedelta(seconds=5)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def find_first_failure(ranks: Iterable[RankRecord]) -> RankRecord | None:
    """The process that failed first and not because of another one; None where none failed."""
    failed = sorted((one for one in ranks if one.order is not None), key=_failed_at)
    own = [one for one in failed if not is_echo(one)]
    return next(iter(own or failed), None)


def is_echo(record: RankRecord) -> bool:
    """Whether a rank failed because another was gone or did not come, or its launcher ended it."""
    if record.error:
        return _ECHO.search(record.error) is not None
    if record.signal == "SIGABRT":  # NCCL's watchdog ends so a rank that waits
        return record.last_wait is not None
    return record.signal == "SIGTERM"


def find_leaver(root: RankRecord, ranks: Sequence[RankRecord]) -> RankRecord | None:
    """The rank that ended well while the one that failed waited for it; None where that is not so."""
    if root.ended is None or not (is_echo(root) or (root.error is None and root.last_wait is not None)):
        return None
    left = [
        one
        for one in ranks
        if one.end is RankEnd.FINISHED and one.ended is not None and one.ended <= root.ended + _NEAR
    ]
    return min(left, key=lambda one: one.ended or _LONG_AGO, default=None)


def find_absent(root: RankRecord, ranks: Sequence[RankRecord]) -> tuple[RankRecord, ...]:
    """The ranks that were last seen elsewhere, where the first to fail had given up its wait."""
    if not is_echo(root) or root.signal == "SIGTERM":
        return ()
    if root.signal != "SIGABRT" and not _GAVE_UP.search(root.error or ""):
        return ()
    return tuple(
        one
        for one in ranks
        if one is not root and one.attempt == root.attempt and one.last_place and one.last_wait is None
    )


def _failed_at(record: RankRecord) -> tuple[datetime, int]:
    return record.raised or record.ended or _LONG_AGO, record.order or 0
