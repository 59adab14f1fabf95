"""What a finding is about, and what proves it."""

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


Subject = Union[DeviceSubject, RankSubject, LinkSubject, HostSubject, SourceSubject, FileSubject]  # noqa: UP007 - used as a type alias at run time


@noun
class Evidence:
    """One fact: its value with the unit, the limit it was held against, and where it was read."""

    name: str
    value: Scalar
    unit: str | None = None
    limit: Scalar | None = None
    source: str = ""
