"""What `gpudiag run` may find of a job: the code of each, what it means, and what to do."""

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity

_OTHER_JOBS = "it is this job that failed; another one may start"

_ENDS = Basis(
    reads="The end of each rank's process at the moment it happens (pidfd), its wait status, torchelastic's error files, the kernel"
    " log of the time of the run.",
    limit="The first process to fail is the cause, unless it was ended by SIGTERM or says that it lost another rank.",
    look_also=("gpudiag explain LOG", "dmesg -T | tail -50", "docs/run.md"),
)
_STANDS = Basis(
    reads="How often each rank's main thread goes to sleep (/proc), then two looks at all ranks, as `gpudiag hang` takes them.",
    limit="20 steps of the job's own, at least 15 s; 60 s before its steps are known; half of that where a rank is stopped or"
    " gone, six times as long where one works while the others wait (`--stall-after`, own choice).",
    look_also=("gpudiag hang", "docs/run.md"),
)
_SHARES = Basis(
    reads="How long each rank's main thread is asleep (/proc/PID/schedstat), and where it is then, by glances at its stack.",
    limit="A rank waits for others by 5 % of the time less than they do, in three of four blocks of 5 s or ten steps, six blocks at least.",
    look_also=("gpudiag nccl-test", "gpudiag preflight", "docs/run.md"),
)

RANK_FAILED = FindingKind(
    code="job.rank_failed",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="A rank of the job failed first; the ranks that ended after it did so because of it.",
    remedy="Read what that rank printed last; `gpudiag explain LOG` on the job's log.",
    basis=_ENDS,
    jobs_may_start=_OTHER_JOBS,
)
COMMAND_FAILED = FindingKind(
    code="job.command_failed",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="The job's command failed, and no rank on this machine was seen to fail.",
    remedy="Read what the command printed last; `gpudiag explain LOG` on the job's log.",
    basis=_ENDS,
    jobs_may_start=_OTHER_JOBS,
)
STALLED = FindingKind(
    code="job.stalled",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="The job stood still for far longer than its own steps take, and the ranks' stacks show no work that explains it.",
    remedy="Look at the line that is named.",
    basis=_STANDS,
    jobs_may_start=_OTHER_JOBS,
)
PAUSED = FindingKind(
    code="job.paused",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_VIOLATION,
    owner=Owner.JOB,
    meaning="The job stood still for far longer than its own steps take, and then went on by itself.",
    remedy="Look at the line that is named; if it is expected, allow more with `gpudiag run --stall-after`.",
    basis=_STANDS,
)
RANK_SLOW = FindingKind(
    code="job.rank_slow",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_VIOLATION,
    owner=Owner.JOB,
    meaning="The other ranks wait for one rank in most of the job's steps: it waits least itself.",
    remedy="See what that rank has more to do of, or gets less of: its data, its processor, its GPU.",
    basis=_SHARES,
)
RESTARTED = FindingKind(
    code="job.restarted",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="The job ended well, after its launcher had started ranks again that had failed.",
    remedy="See why the rank failed that is named: the next time may cost more than a restart.",
    basis=_ENDS,
)
INTERRUPTED = FindingKind(
    code="job.interrupted",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="The job was ended from outside, by a signal: a user, a time limit, a scheduler. No rank had failed before.",
    remedy="If you did not end it, ask the scheduler: `sacct -j ID`, `kubectl describe pod`, `journalctl`.",
    basis=_ENDS,
)
NOT_WATCHED = FindingKind(
    code="job.not_watched",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning="The ranks of the job, or their stacks, could not be looked at: of what happened between them nothing is known.",
    remedy="See the reason; it names the command that installs what is missing. Stacks also need leave to trace (docs/run.md).",
    basis=_STANDS,
)
RUN_FINDINGS = (
    *(RANK_FAILED, COMMAND_FAILED, STALLED, PAUSED, RANK_SLOW),
    *(RESTARTED, INTERRUPTED, NOT_WATCHED),
)
