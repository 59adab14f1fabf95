"""A story: one machine and what happens on it, chapter by chapter, and then again from the start."""

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
    """The chapter of a moment, when it began, and the machine as it is then."""

    chapter: Chapter
    began_seconds: float
    scenario: Scenario


@dataclass
class Story:
    """The chapters of a machine that was started at `began_at`; a chapter is rendered when it comes."""

    name: str
    chapters: tuple[Chapter, ...]
    began_at: datetime
    _rendered: dict[float, Scenario] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it takes, until it starts again."""
        return sum(chapter.seconds for chapter in self.chapters)

    def moment(self, at_seconds: float) -> Moment:
        """The machine so long after its start."""
        number, began = self._find(at_seconds)
        chapter = self.chapters[number]
        scenario = self._render(number, began)
        passed = at_seconds - began
        if began > 0 and passed < chapter.gradual_seconds:
            number = (number or len(self.chapters)) - 1
            before = self._render(number, began - self.chapters[number].seconds)
            scenario = approach(before, scenario, passed / chapter.gradual_seconds)
        return Moment(chapter, began, scenario)

    def _find(self, at_seconds: float) -> tuple[int, float]:
        """Which chapter it is then, and when it began."""
        began = at_seconds // self.seconds * self.seconds
        for number, chapter in enumerate(self.chapters[:-1]):
            if at_seconds < began + chapter.seconds:
                return number, began
            began += chapter.seconds
        return len(self.chapters) - 1, began

    def _render(self, number: int, began: float) -> Scenario:
        """The machine in that chapter, which began then."""
        if began not in self._rendered:
            blueprint = _dated(self.chapters[: number + 1], began)
            scenario = render_scenario(replace(blueprint, name=self.name), self.began_at)
            # Its jobs are never those of the machine that simulates it.
            newer = replace(scenario, jobs=scenario.jobs or ())
            self._rendered = dict([*self._rendered.items(), (began, newer)][-2:])
        return self._rendered[began]


def _dated(chapters: Sequence[Chapter], began: float) -> Blueprint:
    """The machine of the last chapter; what its kernel log has and the first chapter's has not was logged as its chapter began."""
    at = began - sum(chapter.seconds for chapter in chapters[:-1])
    known = chapters[0].blueprint.kernel_log
    logged = {line: line for line in known}
    for chapter in chapters:
        for line in chapter.blueprint.kernel_log:
            logged.setdefault(line, replace(line, age_seconds=-at))
        at += chapter.seconds
    last = chapters[-1].blueprint
    return replace(last, kernel_log=tuple(logged[line] for line in last.kernel_log))
