"""What a finding is about, and what proves it."""

from collections.abc import Iterable
from typing import Literal, Union

from gpudiag.model.codec import noun
from gpudiag.model.reading import Reading
from gpudiag.model.reading import Scalar as Scalar


@noun
class DeviceSubject:
    """One GPU, by its identity; `nvml_index` is for people."""

    uuid: Reading[str]
    bus_id: Reading[str]
    nvml_index: Reading[int]
    host: str
    kind: Literal["device"] = "device"


@noun
class RankSubject:
    """One rank of a run and the host it ran on."""

    rank: int
    host: str
    kind: Literal["rank"] = "rank"


@noun
class RanksSubject:
    """Several ranks of a run, ascending, and their host; the host that looked where they are on several."""

    ranks: tuple[int, ...]
    host: str
    kind: Literal["ranks"] = "ranks"


@noun
class LinkSubject:
    """A link between two ends, such as `rank 1` and `rank 2`, or a bus id and its switch."""

    ends: tuple[str, str]
    host: str
    kind: Literal["link"] = "link"


@noun
class HostSubject:
    """One machine."""

    host: str
    kind: Literal["host"] = "host"


@noun
class SourceSubject:
    """A source of readings on one machine: nvml, gputil, torch or host."""

    source: str
    host: str
    kind: Literal["source"] = "source"


@noun
class FileSubject:
    """A place in a file; `line` counts from 1."""

    path: str
    line: int
    kind: Literal["file"] = "file"


Subject = Union[  # noqa: UP007 - used as a type alias at run time
    DeviceSubject, RankSubject, RanksSubject, LinkSubject, HostSubject, SourceSubject, FileSubject
]


def about_ranks(ranks: Iterable[int], host: str) -> Subject:
    """The subject of a finding about these ranks of a host; the host where there are none."""
    several = tuple(sorted(set(ranks)))
    if not several:
        return HostSubject(host)
    return RankSubject(several[0], host) if len(several) == 1 else RanksSubject(several, host)


def ranks_of(subject: Subject) -> tuple[int, ...]:
    """The ranks that a finding is about; none where it is about another part."""
    if isinstance(subject, RankSubject):
        return (subject.rank,)
    return subject.ranks if isinstance(subject, RanksSubject) else ()


ENVIRONMENT = "environment"  # the origin of a fact that is a variable; its name is the variable's


@noun
class Evidence:
    """One fact: its value with the unit, the limit it was held against, and where it was read.

    `source` may name behind a semicolon where the limit comes from: `environment; limit: NVML`.
    """

    name: str
    value: Scalar
    unit: str | None = None
    limit: Scalar | None = None
    source: str = ""

    @property
    def origin(self) -> str:
        """Where the value was read, without where its limit comes from."""
        return self.source.partition("; ")[0]


def of_variable(name: str, value: Scalar, *, limit: Scalar | None = None, limit_source: str = "") -> Evidence:
    """The fact that a variable of the environment has that value, and the limit with its source."""
    return Evidence(
        name,
        value,
        limit=limit,
        source=f"{ENVIRONMENT}; limit: {limit_source}" if limit_source else ENVIRONMENT,
    )
