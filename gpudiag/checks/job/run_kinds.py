"""What `gpudiag run` may find of a job: the code of each, what it means, and what to do."""

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity

_OTHER_JOBS = "this job failed; another one may start"

_ENDS = Basis(
    reads=(
        "The end of each rank's process at the moment it happens (pidfd), its wait status, the exception"
        " that ended it, the kernel log of the time of the run."
    ),
    limit=(
        "The first rank to fail is the cause, by the time of its exception, unless SIGTERM ended it or it"
        " reports that it lost another rank."
    ),
    look_also=("gpudiag explain LOG", "dmesg -T | tail -50", "docs/run.md"),
)
_STANDS = Basis(
    reads=(
        "How often each rank's main thread goes to sleep (/proc), then two looks"
        " at all ranks, as in `gpudiag hang`."
    ),
    limit=(
        "20 of the job's own steps, at least 15 s; 60 s until its steps are known. Half of that if a"
        " rank is stopped or gone, six times as long, five minutes at least, if one works while the"
        " others wait (`--stall-after`, our choice)."
    ),
    look_also=("gpudiag hang", "docs/run.md"),
)
_SHARES = Basis(
    reads=(
        "How long each rank's main thread sleeps (/proc/PID/schedstat), and where it"
        " sleeps, from short looks at its stack."
    ),
    limit=(
        "A rank waits for the others 5 % of the time less than they wait, in three of four blocks of 5 s or"
        " ten steps, in at least six blocks."
    ),
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
RANK_LEFT = FindingKind(
    code="job.rank_left",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning=(
        "A rank was not in the collective that other ranks waited in: it ended well, or did"
        " something else, until they gave up."
    ),
    remedy=(
        "Let every rank make the same number of calls: as many batches on each, no early `return` or"
        " `sys.exit(0)` on one of them, no collective left out."
    ),
    basis=Basis(
        reads=(
            "The end of each rank's process (pidfd), the exception that ended it, and"
            " its stack when it was last seen."
        ),
        limit=(
            "The ranks that failed report that another rank was gone, or did not come,"
            " and no rank failed before them."
        ),
        look_also=("gpudiag explain LOG", "gpudiag lint train.py", "docs/run.md"),
    ),
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
    meaning=(
        "The job stood still for far longer than its own steps take, and the ranks'"
        " stacks show no work that explains it."
    ),
    remedy="Look at the named line.",
    basis=_STANDS,
    jobs_may_start=_OTHER_JOBS,
)
PAUSED = FindingKind(
    code="job.paused",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_VIOLATION,
    owner=Owner.JOB,
    meaning="The job stood still for far longer than its own steps take, and then continued by itself.",
    remedy=(
        "Look at the named line; if the pause is expected, allow more time with `gpudiag run --stall-after`."
    ),
    basis=_STANDS,
)
RANK_SLOW = FindingKind(
    code="job.rank_slow",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_VIOLATION,
    owner=Owner.JOB,
    meaning="In most of the job's steps the other ranks wait for one rank.",
    remedy="Compare that rank with the others: more data, less of its processor, a slower GPU.",
    basis=_SHARES,
)
RESTARTED = FindingKind(
    code="job.restarted",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="The job succeeded after its launcher had restarted failed ranks.",
    remedy="Find why the named rank failed: the next time may cost more than a restart.",
    basis=_ENDS,
)
INTERRUPTED = FindingKind(
    code="job.interrupted",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning=(
        "The job was ended from outside, by a signal: a user, a time limit, a"
        " scheduler. No rank had failed before."
    ),
    remedy="If you did not end it, ask the scheduler: `sacct -j ID`, `kubectl describe pod`, `journalctl`.",
    basis=_ENDS,
)
NOT_WATCHED = FindingKind(
    code="job.not_watched",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning=(
        "gpudiag could not read the job's ranks or their stacks, so what happened between them is unknown."
    ),
    remedy=(
        "Read the reason: it names the command that installs what is missing. Stacks also need the"
        " permission to trace (docs/run.md)."
    ),
    basis=_STANDS,
)
RUN_FINDINGS = (
    *(RANK_FAILED, RANK_LEFT, COMMAND_FAILED, STALLED, PAUSED, RANK_SLOW),
    *(RESTARTED, INTERRUPTED, NOT_WATCHED),
)
