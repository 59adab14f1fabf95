"""The kinds of findings that `gpudiag judge` reports of a table that another program measured."""

from functools import partial

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity

_kind = partial(FindingKind, severity=Severity.TRIAGE, category=Category.PERF_THRESHOLD, owner=Owner.HARDWARE)
_ALSO = ("docs/judge.md", "gpudiag preflight --level standard", "gpudiag explain LOG")
_BASIS = Basis(
    reads="The value of the largest message, or of each pair and GPU of a matrix, in the given files.",
    limit=(
        "Published figures for just such machines (gpudiag/reference/expected_speeds.toml), else shares of"
        " what the links carry by the data sheet (speeds.toml), each with its source."
    ),
    look_also=_ALSO,
)
_speed_kind = partial(_kind, outcome=Outcome.WARN, basis=_BASIS)
_FACTS = Basis(
    reads="The text of the output: its header, its rows, its closing lines.",
    limit="None: what the program itself printed.",
    look_also=_ALSO,
)

WRONG_DATA = FindingKind(
    code="measured.wrong_data",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning=(
        "A benchmark compared its results, and some were wrong: training on this machine learns from noise."
    ),
    remedy=(
        "Keep these machines out of jobs. Run `gpudiag nccl-test --op all --max-bytes 1G` on each"
        " alone, then again with NCCL_P2P_DISABLE=1: if only the first is wrong, the path between"
        " GPUs (ACS, IOMMU, a bridge) is at fault."
    ),
    basis=Basis(
        reads="The `#wrong` column, `Out of bounds values`, the pattern check of nvbandwidth.",
        limit="0. The old `error` column is the rounding of sums: only `Out of bounds values` counts there.",
        look_also=("collective.corrupted", "gpu.peer_access_broken", "docs/judge.md"),
    ),
)
FAR_TOO_SLOW = _speed_kind(
    code="measured.far_too_slow",
    outcome=Outcome.FAIL,
    meaning=(
        "A speed is below what any sound machine of this kind is known to"
        " reach, whatever algorithm NCCL chose."
    ),
    remedy=(
        "Run it again with no NCCL_ variable set (`env | grep NCCL_`). If it is slow again, keep the machine"
        " out of jobs, and run `nvidia-smi nvlink -s` and `gpudiag preflight --level standard` on it."
    ),
)
TOOL_FAILED = _kind(
    code="measured.tool_failed",
    outcome=Outcome.FAIL,
    category=Category.HW_OTHER,
    meaning="A diagnostic of another maker reports a failure of its own test.",
    remedy=(
        "Follow the program's own advice, and run `gpudiag preflight --level standard` for a second opinion."
    ),
    basis=_FACTS,
)
SLOW = _speed_kind(
    code="measured.slow",
    meaning="A speed is below that of comparable machines.",
    remedy="Run it again with nothing else on the machines; then see the usual causes in docs/judge.md.",
)
SLOW_PART = _speed_kind(
    code="measured.slow_part",
    meaning="One GPU, or one pair of GPUs, is slower than the others of the same table.",
    remedy=(
        "Compare the links of these GPUs: `nvidia-smi nvlink -s`,"
        " `nvidia-smi -q`; then run `gpudiag bandwidth`."
    ),
)
KNOWN_SETTING = _speed_kind(
    code="measured.known_setting",
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="The speed is the one that a setting is known to give: no part is slow.",
    remedy="Take the setting away, and run the benchmark again.",
)
TOOL_WARNED = _kind(
    code="measured.tool_warned",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning="A diagnostic reports what is known to be a setting, or a fault of the diagnostic itself.",
    remedy="Change the setting, and run it again.",
    basis=_FACTS,
)
RIGHT = _speed_kind(
    code="measured.right",
    outcome=Outcome.PASS,
    severity=Severity.NONE,
    category=Category.NONE,
    meaning="A speed is that of comparable machines.",
    remedy="No action is needed.",
)
_not_judged = partial(
    FindingKind,
    severity=Severity.UNKNOWN,
    category=Category.NONE,
    owner=Owner.JOB,
    basis=_FACTS,
)
NOT_A_MEASUREMENT = _not_judged(
    code="measured.not_comparable",
    outcome=Outcome.ERROR,
    meaning=(
        "The table does not measure what it seems to: one rank, several runs mixed,"
        " a run that stopped, negative numbers."
    ),
    remedy="Run the benchmark again as docs/judge.md shows.",
)
TOO_SMALL = _not_judged(
    code="measured.too_small",
    outcome=Outcome.ERROR,
    meaning="The messages or buffers are too small for their time to show a speed.",
    remedy="Run it again with larger sizes: `all_reduce_perf -b 1G -e 8G -f 2`.",
)
PLATFORM_UNKNOWN = _not_judged(
    code="measured.platform_unknown",
    outcome=Outcome.ERROR,
    meaning="Neither the output nor the other files show which hardware was measured.",
    remedy=(
        "Name it: `--gpu`, `--gpus`, `--nodes`, `--nics`; or give NCCL's log or"
        " the text of nvidia-smi beside it."
    ),
)
NO_REFERENCE = _not_judged(
    code="measured.no_reference",
    outcome=Outcome.SKIP,
    meaning=(
        "Nobody has published a figure for this measurement on such a machine, so"
        " gpudiag has none to compare with."
    ),
    remedy="Compare machines of one kind with each other; the slow one stands out.",
)

JUDGE_FINDINGS = (
    WRONG_DATA,
    FAR_TOO_SLOW,
    TOOL_FAILED,
    SLOW,
    SLOW_PART,
    KNOWN_SETTING,
    TOOL_WARNED,
    RIGHT,
    NOT_A_MEASUREMENT,
    TOO_SMALL,
    PLATFORM_UNKNOWN,
    NO_REFERENCE,
)
