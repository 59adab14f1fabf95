"""A machine by name, from a file, or as it was recorded, with faults: as a Scenario, or with its story."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpudiag.compat import UTC
from gpudiag.errors import UsageError
from gpudiag.model.nearest import nearest_hint
from gpudiag.simulate.blueprint import Blueprint
from gpudiag.simulate.faults.table import apply_faults, parse_faults
from gpudiag.simulate.machine_file import (
    base_machines,
    build,
    build_blueprint,
    read_kernel_log,
    read_layers,
    stories,
)
from gpudiag.simulate.recorded import read_recorded
from gpudiag.simulate.render import render_scenario
from gpudiag.simulate.scenario import Scenario
from gpudiag.simulate.story import Chapter, Story

__all__ = ["base_machines", "load_machine", "load_scenario", "load_story", "stories"]

_SPEC_HINT = "write it as h100x8, h100x8+lost:3+hot:5, a .toml file, or the .json of `gpudiag list --json`"


def load_scenario(spec: str, *, now: datetime | None = None) -> Scenario:
    """The machine that `spec` names: `h100x8`, `h100x8+lost:3+hang:6`, `machine.toml+hot:5`, `a1.json`.

    Times in its host tree are relative to `now`, by default the time of the call. Of a story it is the
    beginning.

    Raises:
        UsageError: no such machine, file, fault or GPU, or faults that contradict each other.
    """
    return _at_the_beginning(_read_machine(spec), spec, now)


def load_story(spec: str, *, now: datetime | None = None) -> Story | None:
    """What happens on the machine that `spec` names, by its file's `[[story]]`; None for nothing.

    Raises:
        UsageError: as in `load_scenario`, or a chapter that is not complete.
    """
    loaded = load_machine(spec, now=now)
    return loaded if isinstance(loaded, Story) else None


def load_machine(spec: str, *, now: datetime | None = None) -> Scenario | Story:
    """The machine that `spec` names: a Story where something happens on it.

    Raises:
        UsageError: as in `load_scenario`, or a chapter that is not complete.
    """
    machine = _read_machine(spec)
    if not machine.chapters:
        return _at_the_beginning(machine, spec, now)
    chapters = tuple(_as_written(machine, chapter, spec) for chapter in machine.chapters)
    return Story(spec, chapters, now or datetime.now(UTC))


def _at_the_beginning(machine: "_Machine", spec: str, now: datetime | None) -> Scenario:
    first = machine.chapters[0].faults if machine.chapters else ()
    faults = parse_faults((*machine.faults, *first))
    blueprint = apply_faults(replace(machine.blueprint, name=spec), faults)
    sentences = tuple(f"{fault.text}: {fault.kind.description}" for fault in faults)
    return replace(render_scenario(blueprint, now or datetime.now(UTC)), faults=sentences)


def _as_written(machine: "_Machine", chapter: "_WrittenChapter", spec: str) -> Chapter:
    faults = parse_faults((*machine.faults, *chapter.faults))
    logged = read_kernel_log([{"kernel_log": chapter.kernel_log}], machine.blueprint.gpus, spec)
    blueprint = apply_faults(machine.blueprint, faults).log(*logged)
    return Chapter(chapter.title, chapter.seconds, blueprint, chapter.gradual_seconds)


@dataclass(frozen=True, slots=True)
class _WrittenChapter:
    """A `[[story]]` as written: `faults` beside the file's own, `kernel_log` what it logs."""

    title: str
    seconds: float
    faults: tuple[str, ...] = ()
    gradual_seconds: float = 0.0
    kernel_log: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class _Machine:
    """A machine without its faults, the faults that its file and the spec name, and its chapters."""

    blueprint: Blueprint
    faults: tuple[str, ...] = ()
    chapters: tuple[_WrittenChapter, ...] = ()


def _split(spec: str) -> list[str]:
    """The machine's name and the faults of a spec; a file's name may itself contain a plus sign."""
    parts = spec.split("+")
    for count in range(len(parts), 0, -1):
        name = "+".join(parts[:count])
        if name.endswith((".toml", ".json")) and os.path.isfile(name):
            return [name, *parts[count:]]
    return parts


def _read_machine(spec: str) -> _Machine:
    """The machine, its chapters, and the faults that its file and the spec name."""
    name, *faults = _split(spec)
    path = Path(name)
    if name in (*base_machines(), *stories()) or path.suffix == ".toml":
        layers = read_layers(name if path.suffix != ".toml" else path)
        listed = (fault for layer in layers for fault in _listed(layer, name))
        written = next((layer["story"] for layer in reversed(layers) if "story" in layer), ())
        chapters = tuple(_chapter(table, name) for table in written)
        return _Machine(build_blueprint(layers, name), (*listed, *faults), chapters)
    if path.suffix == ".json":
        return _Machine(read_recorded(path), tuple(faults))
    if os.path.exists(name):
        raise UsageError(
            f"{name} is no file of a machine",
            hint="the name of such a file ends in .toml, that of a recorded machine in .json",
        )
    raise UsageError(
        f"there is no simulated machine {name!r}",
        hint=nearest_hint(name, (*base_machines(), *stories())) if name else _SPEC_HINT,
    )


def _listed(layer: Any, name: str) -> list[str]:
    faults = layer.get("faults", [])
    if not isinstance(faults, list) or any(not isinstance(fault, str) for fault in faults):
        raise UsageError(f'{name}: `faults` should be a list such as ["lost:3", "hot:5"]')
    return faults


def _chapter(table: Any, name: str) -> _WrittenChapter:
    chapter = build(_WrittenChapter, table, f"{name}: [[story]]")
    _listed({"faults": list(chapter.faults)}, f"{name}: [[story]] {chapter.title}")
    if not 0 < chapter.seconds < math.inf or not 0 <= chapter.gradual_seconds <= chapter.seconds:
        raise UsageError(
            f"{name}: [[story]] {chapter.title!r} takes {chapter.seconds} seconds,"
            f" {chapter.gradual_seconds} of them gradual",
            hint="`seconds` is above 0, and `gradual_seconds` from 0 to `seconds`",
        )
    return chapter
