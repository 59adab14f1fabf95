"""What a preflight is asked to do: a frozen, bounded plan, to and from the command line."""

from dataclasses import dataclass, fields
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.finding import Finding, Outcome, Owner
from gpudiag.model.plan import require_between, require_known

LEVELS = ("instant", "quick", "standard", "long")
# Whose FAIL fails the gate: of anyone; of whatever keeps jobs off this machine, whoever must act; of some owners.
FAIL_ON = ("any", "machine", "host", "hardware")
_FAILING_OWNERS = {
    "host": frozenset((Owner.HARDWARE, Owner.HOST)),
    "hardware": frozenset((Owner.HARDWARE,)),
}
MAX_EXPECTED_GPUS = 1024
MAX_VERSION_CHARACTERS = 64
MIN_DURATION_SECONDS, MAX_DURATION_SECONDS = 10.0, 3600.0

FLAGS = {
    "level": "--level",
    "only": "--only",
    "skip": "--skip",
    "expect_gpus": "--expect-gpus",
    "at_least_gpus": "--at-least-gpus",
    "expect_driver": "--expect-driver",
    "fail_on": "--fail-on",
    "strict": "--strict",
    "force": "--force",
    "duration_seconds": "--duration",
}


def is_driver_version(text: str) -> bool:
    """Whether that is a driver's version, or its beginning: numbers with points between them."""
    return len(text) <= MAX_VERSION_CHARACTERS and all(part.isdecimal() for part in text.split("."))


@dataclass(frozen=True, slots=True)
class PreflightPlan:
    """One preflight: how thorough, which checks, what is expected, and what counts as a failure.

    `expect_gpus` is how many GPUs there are to be; `at_least_gpus` is what the node was given out as: it may
    have one more, for its display. `only` and `skip` are names of checks, or their first word for all that begin with it (`pcie`).
    `duration_seconds` is how long the load of level long lasts; None: as long as the device needs.

    Raises:
        UsageError: a field is out of its bounds, or two contradict each other.
    """

    level: str = "quick"
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    expect_gpus: int | None = None
    at_least_gpus: int | None = None
    expect_driver: str | None = None
    fail_on: str = "any"
    strict: bool = False
    force: bool = False
    duration_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run, in one sentence."""
        require_known(self.level, LEVELS, "a level")
        require_known(self.fail_on, FAIL_ON, "a word for --fail-on")
        for count, flag in ((self.expect_gpus, "--expect-gpus"), (self.at_least_gpus, "--at-least-gpus")):
            if count is not None:
                require_between(count, 0, MAX_EXPECTED_GPUS, flag)
        if self.expect_gpus is not None and self.at_least_gpus is not None:
            raise UsageError("--expect-gpus and --at-least-gpus contradict each other", hint="leave one out")
        if self.expect_driver is not None and not is_driver_version(self.expect_driver):
            raise UsageError(
                f"--expect-driver {self.expect_driver[:MAX_VERSION_CHARACTERS]} is not a driver version",
                hint="write it as 580.105.08, or 580 for the whole branch",
            )
        both = [name for name in self.only if name in self.skip]
        if both:
            raise UsageError(f"--only and --skip both name {both[0]}", hint="leave it out of one of the two")
        if self.strict and self.fail_on != "any":
            raise UsageError(
                f"--strict fails on everything, and --fail-on {self.fail_on} does not", hint="leave one out"
            )
        if self.force and self.level == "instant":
            raise UsageError(
                "--force is about tests that disturb a GPU, and --level instant has none",
                hint="leave it out, or ask for --level quick",
            )

        if self.duration_seconds is not None:
            require_between(self.duration_seconds, MIN_DURATION_SECONDS, MAX_DURATION_SECONDS, "--duration")
            if self.level != "long":
                raise UsageError(
                    f"--duration is of the load of level long, and --level {self.level} has none",
                    hint="ask for --level long",
                )

    def fails_on(self, finding: Finding) -> bool:
        """Whether that finding fails the gate."""
        if finding.outcome is not Outcome.FAIL:
            return False
        if self.fail_on == "machine":
            return finding.blocks_jobs
        return self.fail_on == "any" or finding.owner in _FAILING_OWNERS[self.fail_on]

    def to_argv(self) -> tuple[str, ...]:
        """The flags that ask for this plan; what equals the default is left out."""
        argv: list[str] = []
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if value == field.default:
                continue
            argv.append(FLAGS[field.name])
            if value is not True:
                argv.append(",".join(value) if isinstance(value, tuple) else str(value))
        return tuple(argv)
