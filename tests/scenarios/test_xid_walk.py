"""Every Xid of the table alone in the log, on two kinds of machine: what is said of it follows NVIDIA's
resolution bucket.

The buckets are NVIDIA's (immediate action), written down here apart from the table that is tried.
"""

from functools import partial
from itertools import product

import pytest

from gpudiag.checks.builtin import BUILTIN
from gpudiag.checks.runner import run_checks
from gpudiag.model.finding import Outcome, Owner, Severity, worst
from gpudiag.reference.xid import xids
from tests.scenarios.situations import Situation, look_at_machine, top
from tests.unit.checks.kernel_events import xid
from tests.walking import walk

FAIL, WARN, PASS = Outcome.FAIL, Outcome.WARN, Outcome.PASS
HARDWARE, SOFTWARE, JOB = Owner.HARDWARE, Owner.SOFTWARE, Owner.JOB
RESET, ISOLATE, MONITOR, NONE = Severity.RESET, Severity.ISOLATE, Severity.MONITOR, Severity.NONE

MACHINES = ("h100x8", "rtx4090x2")
# NVIDIA Xid catalog, 2025-10-29, column "Resolution Bucket (Immediate Action)".
RESET_GPU = {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
WORKFLOWS_THAT_RESET = {48, 74, *range(144, 151)}  # a line without a word of "Nonfatal"
RESTART_BARE_METAL, CHECK_MECHANICALS, RESTART_VM = {79}, {54}, {151}
RESTART_APP = {
    *(8, 11, 13, 25, 31, 32),
    *range(39, 42),
    60,
    *range(68, 73),
    *range(75, 78),
    80,
    *range(82, 87),
    *(88, 89, 94),
    *range(96, 106),
    *range(126, 136),
    139,
}
IGNORE = {37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161}
FOR_A_PERSON = {78, 142, 159}  # UPDATE_SWFW, CONTACT_SUPPORT, CHECK_UVM
FOLLOW_ANOTHER = {45, 154}
NO_BUCKET = set(range(162, 173))
UNUSED = {42, 47, *range(56, 60), 61, 65, 73, 81, 90, *range(111, 119), *range(122, 126), 138}
NEWER = set(range(173, 177))

# Where we say otherwise than the bucket: what, and why.
OURS = {
    # It works until the reset, and the driver asks for one where it must be soon.
    156: (WARN, HARDWARE, MONITOR),
    54: (FAIL, HARDWARE, ISOLATE),  # no reset brings it back
    79: (FAIL, HARDWARE, ISOLATE),
    151: (FAIL, SOFTWARE, RESET),  # nothing of the GPU is broken
    94: (WARN, HARDWARE, MONITOR),  # the job is restarted, and the memory is the GPU's
    # Ignored by the job's side; a person may look, for the part wears or the driver erred.
    **{code: (WARN, HARDWARE, MONITOR) for code in (63, 92, 93, 121, 157, 160, 161)},
    **{code: (WARN, SOFTWARE, MONITOR) for code in (38, 44, 66, 67, 141, 152, 153, 78)},
    **{code: (WARN, JOB, NONE) for code in (108, 137, 142)},
    159: (WARN, HARDWARE, MONITOR),
}


def expected(code):
    """Verdict, owner and severity by the bucket; None where NVIDIA gives no bucket."""
    if code in OURS:
        return OURS[code]
    if code in RESET_GPU | WORKFLOWS_THAT_RESET:
        return FAIL, HARDWARE, RESET
    if code in RESTART_APP:
        return WARN, JOB, NONE
    return (PASS, JOB, NONE) if code in IGNORE | FOLLOW_ANOTHER else None


def judge(machine, code):
    base = look_at_machine(machine)
    where = partial(xid, code, gpu=1, minutes_ago=60, on=base)
    context = Situation((top(kernel_log=(where(),)),)).context(base)
    results = run_checks(context, [check for check in BUILTIN if {"kernel_log", "xids"} & set(check.needs)])
    return worst(tuple(result.outcome for result in results)), [
        found for result in results for found in result.findings
    ]


@walk(product(sorted(xids()), MACHINES))
def test_an_xid_alone_follows_its_bucket(case):
    code, machine = case
    verdict, found = judge(machine, code)
    (finding,) = found
    assert finding.subject.nvml_index == 1
    assert verdict is finding.outcome
    assert finding.remedy
    if expected(code):
        assert (finding.outcome, finding.owner, finding.severity) == expected(code)
    else:
        assert code in NO_BUCKET | UNUSED | NEWER


def test_every_code_is_in_one_bucket():
    buckets = (
        *(RESET_GPU, WORKFLOWS_THAT_RESET, RESTART_BARE_METAL, CHECK_MECHANICALS, RESTART_VM),
        *(RESTART_APP, IGNORE, FOR_A_PERSON, FOLLOW_ANOTHER, NO_BUCKET, UNUSED, NEWER),
    )
    assert sum(len(bucket) for bucket in buckets) == len(set().union(*buckets))
    assert set().union(*buckets) == set(xids())


@pytest.mark.parametrize("machine", MACHINES)
def test_a_code_that_nobody_knows_is_for_a_person(machine):
    verdict, (finding,) = judge(machine, 177)
    assert (verdict, finding.code) == (WARN, "xid.unknown")
