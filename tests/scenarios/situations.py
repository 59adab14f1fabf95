"""Situations of a machine: a snapshot as the probes make it, what differs, and what was measured on it."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.errors import UsageError
from gpudiag.model.codec import type_hints
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import loads
from gpudiag.model.history import History
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import Measures
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.nvml.library import build_library
from gpudiag.simulate.session import open_session
from gpudiag.store.baselines import samples_of
from tests.warm_start import run_python

_TIME_LIMIT_SECONDS = 60  # proves that it ends
_LOOK = """
from gpudiag.model.codec import dumps
from gpudiag.probe.inventory import take_snapshot
print(dumps(take_snapshot(("nvml", "torch"), 5.0, host_state=True, kernel_log={kernel_log})))
"""
Change = Callable[[Snapshot], Snapshot]
Measure = Callable[[Snapshot], Measures]
Remember = Callable[[Snapshot], Reading[History]]


@cache
def look_at_machine(spec: str, kernel_log: bool = False) -> Snapshot:
    """The snapshot that the probes make on a simulated machine, host state and torch included."""
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")
    with open_session(load_scenario(spec)) as session:
        words = ("-c", _LOOK.format(kernel_log=kernel_log))
        asked = run_python(words, session.environment, _TIME_LIMIT_SECONDS)
    assert asked.status == 0, asked.err
    snapshot: Snapshot = loads(asked.out)
    return snapshot


@dataclass(frozen=True)
class Situation:
    """What is different now, what was different `seconds` earlier, and in the recorded good state.

    `before`, `recorded` and `named` None: there is no such snapshot. `named` is the machine that `--expect`
    names. `expected` are fields of Context. `measured` is what was measured on the machine as it is now, and
    `remembered` what the store holds about it.
    """

    now: tuple[Change, ...] = ()
    before: tuple[Change, ...] | None = None
    seconds: float = 60.0
    recorded: tuple[Change, ...] | None = None
    named: tuple[Change, ...] | None = None
    expected: dict[str, Any] = field(default_factory=dict)
    measured: Measure = lambda snapshot: Measures()
    remembered: Remember = lambda snapshot: NOT_ASKED

    def context(self, base: Snapshot) -> Context:
        """What a check sees on that machine in this situation."""
        earlier = NOT_ASKED if self.before is None else changed(base, self.before)
        if isinstance(earlier, Snapshot):
            earlier = replace(earlier, taken_at=base.taken_at - timedelta(seconds=self.seconds))
        baseline = NOT_ASKED if self.recorded is None else changed(base, self.recorded)
        snapshot = changed(base, self.now)
        measures = self.measured(snapshot)
        return Context(
            snapshot,
            measures,
            earlier=earlier,
            baseline=baseline,
            known_gpus=known_gpus_of(baseline) if isinstance(baseline, Snapshot) else NOT_ASKED,
            expected_machine=NOT_ASKED if self.named is None else changed(base, self.named),
            history=self.remembered(snapshot),
            samples=samples_of(measures),
            **self.expected,
        )


@dataclass(frozen=True)
class Case:
    """One finding code of one check: a situation that reports it, and a near miss that does not."""

    check: str
    code: str
    fires: Situation
    near: Situation
    base: str = "h100x8"


def case(check: str, code: str, base: str = "h100x8") -> Callable[[Situation, Situation], Case]:
    """What makes a case of one code from the situation that reports it and its near miss."""
    return lambda fires, near: Case(check, code, fires, near, base)


def now(*changes: Change, **rest: Any) -> Situation:
    """A situation of changes to the machine as it is now."""
    return Situation(changes, **rest)


def changed(snapshot: Snapshot, changes: tuple[Change, ...]) -> Snapshot:
    for change in changes:
        snapshot = change(snapshot)
    return snapshot


def gpu(index: int, **readings: Any) -> Change:
    """One GPU with other readings."""
    return lambda snapshot: replace(
        snapshot,
        devices=tuple(
            _with(device, readings) if device.id.nvml_index == index else device
            for device in snapshot.devices
        ),
    )


def gpus(**readings: Any) -> Change:
    """Every GPU with other readings."""
    return lambda snapshot: replace(
        snapshot, devices=tuple(_with(device, readings) for device in snapshot.devices)
    )


def part(index: int, name: str, **members: Any) -> Change:
    """One GPU with other members of a reading that is an object."""
    return lambda snapshot: gpu(index, **{name: _with(getattr(snapshot.devices[index], name), members)})(
        snapshot
    )


def nvlink(index: int, link: int, **members: Any) -> Change:
    """One NVLink of one GPU with other members."""

    def change(snapshot: Snapshot) -> Snapshot:
        links = snapshot.devices[index].nvlinks
        return gpu(index, nvlinks=tuple(_with(one, members) if one.link == link else one for one in links))(
            snapshot
        )

    return change


def machine(**facts: Any) -> Change:
    """The machine around the GPUs with other facts."""
    return lambda snapshot: replace(snapshot, machine=_with(snapshot.machine, facts))


def state(**readings: Any) -> Change:
    """The host's state with other readings."""
    return lambda snapshot: machine(state=_with(snapshot.machine.state, readings))(snapshot)


def state_part(name: str, **members: Any) -> Change:
    """One part of the host's state with other members."""
    return lambda snapshot: state(**{name: _with(getattr(snapshot.machine.state, name), members)})(snapshot)


def port(index: int, **members: Any) -> Change:
    """One RDMA port with other members."""

    def change(snapshot: Snapshot) -> Snapshot:
        ports = list(snapshot.machine.state.infiniband_ports)
        ports[index] = _with(ports[index], members)
        return state(infiniband_ports=tuple(ports))(snapshot)

    return change


def environment(**variables: str) -> Change:
    """More variables that steer CUDA, NCCL or torch."""

    def change(snapshot: Snapshot) -> Snapshot:
        settings = snapshot.machine.state.settings
        return state(settings=_with(settings, {"environment": {**settings.environment, **variables}}))(
            snapshot
        )

    return change


def torch(**facts: Any) -> Change:
    """Torch with other facts."""
    return lambda snapshot: replace(snapshot, torch=_with(snapshot.torch, facts))


def top(**values: Any) -> Change:
    """The snapshot itself with other values: driver_version, sources, disagreements."""
    return lambda snapshot: replace(snapshot, **values)


def without_gpu(index: int) -> Change:
    """A machine that lost a GPU for good: neither in the driver's list nor on the bus."""

    def change(snapshot: Snapshot) -> Snapshot:
        gone = snapshot.devices[index].id.bus_id
        pci = tuple(one for one in snapshot.machine.pci_devices if one.bus_id != gone)
        devices = tuple(device for device in snapshot.devices if device.id.bus_id != gone)
        return machine(pci_devices=pci)(replace(snapshot, devices=devices))

    return change


def blank(noun: Any, why: Callable[[], MissingReason | None]) -> Any:
    """A noun whose readings are missing for the reason that `why` gives each of them.

    None leaves it as it is. What is no reading stays, as does whether a GPU answers.
    """
    if isinstance(noun, tuple):
        return tuple(blank(one, why) for one in noun)
    if not hasattr(noun, "__dataclass_fields__") or isinstance(noun, Missing):
        return noun
    hints = type_hints(type(noun))
    values = {}
    for one in fields(noun):
        value, kept = getattr(noun, one.name), one.name in ("responding", "id")
        is_reading = Missing in getattr(hints[one.name], "__args__", ())
        reason = why() if is_reading and not kept else None
        values[one.name] = Missing(reason) if reason else value if kept else blank(value, why)
    return replace(noun, **values)


def _with(noun: Any, values: dict[str, Any]) -> Any:
    assert not isinstance(noun, Missing), f"the base machine does not have what {sorted(values)} are part of"
    return replace(noun, **values)


def without_port(index: int) -> Change:
    """A machine that lost one of its RDMA ports."""

    def change(snapshot: Snapshot) -> Snapshot:
        ports = snapshot.machine.state.infiniband_ports
        return state(infiniband_ports=tuple(one for place, one in enumerate(ports) if place != index))(
            snapshot
        )

    return change
