"""A story: one machine and what happens on it, chapter by chapter; it stays as the last chapter leaves it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpudiag.simulate.blueprint import Blueprint
from gpudiag.simulate.motion import approach
from gpudiag.simulate.render import render_scenario
from gpudiag.simulate.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Chapter:
    """What is so for `seconds`; readings move to it from the chapter before over `gradual_seconds`."""

    title: str
    seconds: float
    blueprint: Blueprint
    gradual_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The chapter of a moment, and the machine as it is then."""

    chapter: Chapter
    scenario: Scenario


@dataclass
class Story:
    """The chapters of a machine that was started at `began_at`; a chapter is rendered when it comes."""

    name: str
    chapters: tuple[Chapter, ...]
    began_at: datetime
    _rendered: dict[int, Scenario] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it takes to the end of the last chapter."""
        return sum(chapter.seconds for chapter in self.chapters)

    def moment(self, at_seconds: float) -> Moment:
        """The machine so long after its start."""
        number, passed = 0, at_seconds
        while passed >= self.chapters[number].seconds and number < len(self.chapters) - 1:
            passed -= self.chapters[number].seconds
            number += 1
        chapter, scenario = self.chapters[number], self._render(number)
        if number > 0 and passed < chapter.gradual_seconds:
            scenario = approach(self._render(number - 1), scenario, passed / chapter.gradual_seconds)
        return Moment(chapter, scenario)

    def _render(self, number: int) -> Scenario:
        """The machine in that chapter."""
        if number not in self._rendered:
            blueprint = _with_whole_log(self.chapters[: number + 1])
            scenario = render_scenario(replace(blueprint, name=self.name), self.began_at)
            # Its jobs are never those of the machine that simulates it.
            self._rendered[number] = replace(scenario, jobs=scenario.jobs or ())
        return self._rendered[number]


def _with_whole_log(chapters: Sequence[Chapter]) -> Blueprint:
    """The machine of the last chapter with what was logged in all of them, each line as its chapter began."""
    lines = list(chapters[0].blueprint.kernel_log)
    logged, at = set(lines), 0.0
    for chapter in chapters:
        new = [line for line in chapter.blueprint.kernel_log if line not in logged]
        logged.update(new)
        lines += [replace(line, age_seconds=-at) for line in new]
        at += chapter.seconds
    return replace(chapters[-1].blueprint, kernel_log=tuple(lines))
