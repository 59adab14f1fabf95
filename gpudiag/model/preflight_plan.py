"""What a preflight is asked to do: a frozen, bounded plan, to and from the command line."""

from dataclasses import dataclass

from gpudiag.errors import UsageError
from gpudiag.model.finding import Finding, Outcome, Owner
from gpudiag.model.option import Plan, option

LEVELS = ("instant", "quick", "standard", "long")
# Whose FAIL fails the gate: anyone's; any that keeps jobs off this machine; that of some owners.
FAIL_ON = ("any", "machine", "host", "hardware")
_FAILING_OWNERS = {
    "host": frozenset((Owner.HARDWARE, Owner.HOST)),
    "hardware": frozenset((Owner.HARDWARE,)),
}
MAX_EXPECTED_GPUS = 1024
MAX_VERSION_CHARACTERS = 64
MIN_DURATION_SECONDS, MAX_DURATION_SECONDS = 10.0, 3600.0


def is_driver_version(text: str) -> bool:
    """Whether the text is a driver version or its beginning: numbers with points between them."""
    return len(text) <= MAX_VERSION_CHARACTERS and all(part.isdecimal() for part in text.split("."))


@dataclass(frozen=True, slots=True)
class PreflightPlan(Plan):
    """One preflight: how thorough, which checks, what is expected, and what counts as a failure.

    `expect_gpus` is how many GPUs there are to be; `at_least_gpus` is how many the scheduler lists: the node may
    have one more, for its display. `only` and `skip` are names of checks, or their first word for all that begin with it (`pcie`).
    `duration_seconds` is how long the load of level long lasts; None: as long as the device needs.

    Raises:
        UsageError: a field is out of its bounds, or two contradict each other.
    """

    level: str = option(
        "quick",
        "--level",
        "instant (< 2 s, readings only), quick (45 s, and 4 s for each GPU), standard (minutes), long.",
        "NAME",
        choices=LEVELS,
        what="a level",
    )
    only: tuple[str, ...] = option(
        (), "--only", "Only these checks, or topics such as pcie; --list names them.", "NAME,..."
    )
    skip: tuple[str, ...] = option((), "--skip", "Not these checks or topics.", "NAME,...")
    expect_gpus: int | None = option(
        None, "--expect-gpus", "How many GPUs there must be.", "N", between=(0, MAX_EXPECTED_GPUS)
    )
    at_least_gpus: int | None = option(
        None,
        "--at-least-gpus",
        "Or no fewer than that many (Slurm's Gres).",
        "N",
        between=(0, MAX_EXPECTED_GPUS),
    )
    expect_driver: str | None = option(
        None, "--expect-driver", "Which driver: 580.105.08, or a branch such as 580.", "VERSION"
    )
    fail_on: str = option(
        "any",
        "--fail-on",
        "Which FAIL exits 1: any; machine: what keeps jobs off it, whoever must act; "
        "host, hardware: what they must mend.",
        "WHAT",
        choices=FAIL_ON,
        what="a word for --fail-on",
    )
    strict: bool = option(False, "--strict", "WARN exits 1; a check skipped for a gap exits 3.")
    force: bool = option(False, "--force", "Test GPUs that others use, too.")
    duration_seconds: float | None = option(
        None,
        "--duration",
        "Of the load of level long.",
        "SECONDS",
        between=(MIN_DURATION_SECONDS, MAX_DURATION_SECONDS),
        default_words="900 on GPUs, 60 on the CPU",
    )

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run, in one sentence."""
        self.require_options()
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
        if self.duration_seconds is not None and self.level != "long":
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
