"""What most GPUs of one product and board have: with few of them nobody knows which one is the other."""

from collections import Counter
from collections.abc import Iterable

from gpudiag.checks.per_device import alike, answering
from gpudiag.checks.subjects import name_device
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import Missing

_LEAST_VOTES = 2


def majority_of(values: Iterable[object]) -> object | None:
    """The value of more than half, and two at least; None where there is none. Missing ones do not count."""
    counts = Counter(value for value in values if not isinstance(value, Missing))
    if not counts:
        return None
    value, votes = counts.most_common(1)[0]
    return value if votes >= _LEAST_VOTES and votes > counts.total() / 2 else None


def usual_value(snapshot: Snapshot, device: Device, field: str) -> object | None:
    """The value of most GPUs of this one's product and board, itself included; None without a majority."""
    return majority_of(getattr(one, field) for one in (device, *alike(snapshot, device)))


def split_group(snapshot: Snapshot, device: Device, field: str) -> tuple[Device, ...]:
    """The GPUs like this one that have the value, itself included, where they differ without a majority.

    Empty otherwise, and for every GPU but the first of them: one finding is for all.
    """
    like = (device, *alike(snapshot, device))
    group = tuple(
        one
        for one in answering(snapshot)
        if any(one is other for other in like) and not isinstance(getattr(one, field), Missing)
    )
    values = {getattr(one, field) for one in group}
    if (
        len(values) < _LEAST_VOTES
        or group[0] is not device
        or usual_value(snapshot, device, field) is not None
    ):
        return ()
    return group


def describe_split(group: Iterable[Device], field: str, unit: str = "") -> str:
    """Who has which value: `96.00 on GPU 0, GPU 2; 97.00 on GPU 1`."""
    holders: dict[object, list[str]] = {}
    for device in group:
        holders.setdefault(getattr(device, field), []).append(name_device(device))
    return "; ".join(
        f"{f'{value:.0f}' if isinstance(value, float) else value}{unit} on {', '.join(names)}"
        for value, names in holders.items()
    )
