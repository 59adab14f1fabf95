"""What a look at running jobs is asked to do: a frozen, bounded plan, to and from the command line."""

from dataclasses import dataclass

from gpudiag.errors import UsageError
from gpudiag.model.option import MAX_DEADLINE_SECONDS, Plan, option

MAX_PID = 1 << 22  # the kernel's limit on 64-bit machines


@dataclass(frozen=True, slots=True)
class HangPlan(Plan):
    """One look: at which of the jobs on this machine, and after how long a rank that works is blamed.

    `job_of` is for callers that may not look at any process: it is refused for one of no job that was found.

    Raises:
        UsageError: a value is out of bounds, or two of them name jobs.
    """

    job_of: int | None = option(
        None,
        "--job-of",
        "The job of this process, among those that --all finds.",
        "PID",
        between=(1, MAX_PID),
        default_words="the only one here",
    )
    slurm_job: str | None = option(
        None,
        "--slurm-job",
        "The ranks of that Slurm job on this machine.",
        "ID",
        default_words="any",
    )
    every: bool = option(False, "--all", "Every job on this machine.")
    limit: float = option(
        300.0,
        "--limit",
        "Blame a rank that works while others wait after that time.",
        "SECONDS",
        between=(1, 86400),
    )

    watch: float = option(
        0.0,
        "--watch",
        "Watch a job for this long where it is unknown whether it hangs.",
        "SECONDS",
        between=(0, 86400),
        default_words="until the limits have passed, about 5",
    )
    deadline_seconds: float | None = option(
        None,
        "--deadline",
        "Longest wait for an answer; it is then made from what was seen.",
        "SECONDS",
        between=(1, MAX_DEADLINE_SECONDS),
        default_words="as long as the looks take, about 5",
    )

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run, in one sentence."""
        self.require_options()
        if sum((self.job_of is not None, self.slurm_job is not None, self.every)) > 1:
            raise UsageError(
                "--job-of, --slurm-job and --all exclude each other", hint="see `gpudiag hang --help`"
            )
        if self.deadline_seconds is not None and self.watch > self.deadline_seconds:
            raise UsageError(
                f"--watch {self.watch:g} is longer than --deadline {self.deadline_seconds:g}",
                hint="leave one of them out",
            )
