"""Reads the path of a log: which rank, host and attempt it is of."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath

_ATTEMPT = re.compile(r"attempt_(\d+)$")
_RANK = re.compile(r"(?:^|[^a-zA-Z])(?:global[_-]?)?rank[_-]?(\d+)(?!\d)")
_LOCAL_RANK = re.compile(
    r"(?:^|[^a-zA-Z])(?:local[_-]?rank[_-]?|workerlog\.)(\d+)(?!\d)"
)  # workerlog: Paddle
_NODE = re.compile(
    r"(?:^|[^a-zA-Z])(?:node[_-]?(?:rank[_-]?)?|(?:machine|host)[_-]?rank[_-]?)(\d+)(?!\d)", re.IGNORECASE
)
_OTHER_RANK = re.compile(  # of a node, or within a group
    r"(?:^|[^a-zA-Z])(?:local|node|machine|host|group|role|worker|[cdept]p|data|tensor|pipeline|"
    r"expert)[_-]?rank[_-]?\d+",
    re.IGNORECASE,
)
_TASK = re.compile(r"(?:^|[^a-zA-Z])(?:task|proc(?:ess)?|worker-?rank)[_-]?(\d+)(?!\d)")
_HOST = re.compile(
    r"(?:^|[^A-Za-z0-9-])((?!rank|node_?rank|s?xid|attempt|slurm|job|run|step|epoch|part|log|stdout|stderr|"
    r"train|dmesg|task|err|out|version|case|worker_?rank|fr_|dump)"
    r"[a-z][a-z-]*?-?[a-z]*\d[\w-]*)(?![A-Za-z0-9-])"
)
_POD = re.compile(r"^((?:[a-z0-9]+-)*(?:worker|master|launcher|replica|pod|trainer)-\d+(?:-[a-z0-9]{5})?)")
_NOT_A_HOST = re.compile(
    r"[-_.]?(?:previous|nvidia-bug-report|dmesg|kern(?:el)?|syslog|messages|journal|torchrun|train|slurm|"
    r"logs?|out|err)(?![a-z])[-_.]?"
)
_PREVIOUS = re.compile(
    r"[._-]?\(?prev(?:ious)?\)?(?![a-z])(?=[^/]*$)|(?<=/)prev(?:ious)?[._-](?=[^/]*$)|"
    r"^prev(?:ious)?[._-](?=[^/]*$)"
)
_NUMBER_AT_END = re.compile(r"-(\d+)(?:-[a-z0-9]{5})?$")


@dataclass(frozen=True, slots=True)
class LogPath:
    """The rank, host and attempt of a log, as far as its path shows them."""

    rank: int | None = None
    local_rank: int | None = None
    node: int | None = None
    attempt: int | None = None
    pod: str = ""
    host: str = ""  # a word that looks like a host's name
    folder: str = ""  # of the node: what the logs of its ranks have in common


@lru_cache(maxsize=4096)
def parse_log_path(name: str, shared: int = 0) -> LogPath:
    """What a path shows; the parts nearest to the file's name take precedence.

    Its first `shared` characters are those of every log's path: no host's name is guessed from them.
    """
    parts = PurePath(name).parts
    attempt = next((place for place, part in enumerate(parts) if _ATTEMPT.match(part)), None)
    rank = local = node = None
    host = pod = ""
    # A run's own folder has no host's name.
    of_names = parts if attempt is None else (*parts[: max(attempt - 1, 0)], "")
    own = PurePath(name[shared:]).parts
    # NODE/torchelastic_x/RUN_y/attempt_0/0/stderr.log.
    nearest = -5 if attempt is None else max(attempt - 3, 0)
    for part in reversed(parts[nearest:]):
        local = _first(local, _LOCAL_RANK, part)
        rank = _first(rank, _RANK, _OTHER_RANK.sub("", part))
        rank = _first(rank, _TASK, part)
        node = _first(node, _NODE, part)
        pod = pod or next((match[1] for match in _POD.finditer(part.removesuffix(".log"))), "")
        if part in of_names and part in own and not _NODE.search(part):
            host = host or next(
                (match[1] for match in _HOST.finditer(_NOT_A_HOST.sub("", part.split(".")[0]))), ""
            )
    if attempt is not None:
        below = parts[attempt + 1] if attempt + 1 < len(parts) - 1 else ""
        local = int(below) if below.isdecimal() else local
        number = _ATTEMPT.match(parts[attempt])
        return LogPath(
            rank, local, node, int(number[1]) if number else None, pod, host, "/".join(parts[:attempt])
        )
    return LogPath(rank, local, node, None, pod, host, "/".join(parts[:-1]))


def without_previous(name: str) -> str:
    """The name of a container's own log for that of its life before, by `kubectl logs --previous`."""
    return _PREVIOUS.sub("", name, count=1)


def number_of(pod: str) -> int | None:
    """The number at the end of a pod's name."""
    match = _NUMBER_AT_END.search(pod.split("/")[0])
    return int(match[1]) if match else None


def _first(known: int | None, pattern: re.Pattern[str], part: str) -> int | None:
    if known is not None:
        return known
    match = pattern.search(part)
    return int(match[1]) if match else None
