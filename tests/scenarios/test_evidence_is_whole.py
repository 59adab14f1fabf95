"""Evidence holds what was read, whole, however long.

Only text for people is shortened, and between two words. The MMU fault of one H100 was cut in its decisive
word: "Fault is of type FAULT_PDE ACCESS_T".
"""

from dataclasses import replace

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks, verdict
from gpudiag.model.context import Context
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import Missing
from gpudiag.model.report import Report
from gpudiag.render.report_text import render_report_text
from tests.scenarios.kernel_log_cases import KERNEL_LOG_CASES
from tests.scenarios.situations import Case, look_at_machine
from tests.walking import walk

CHECKS = {check.name: check for check in BUILTIN}
WORDS_OF_A_LINE = ("line", "kernel_log", "restarted_by")
LAST_WORD = "ACCESS_TYPE_VIRT_WRITE"
# A kernel's line has at most 992 bytes (LOG_LINE_MAX less the prefix, kernel/printk/printk.c).
TAIL = " ".join(f"register{number:03}=0x{number:08x}" for number in range(20)) + f" {LAST_WORD}"


def lengthened(context: Context) -> Context:
    """The situation with every line of the kernel log as long as lines become."""
    events = context.snapshot.kernel_log
    if isinstance(events, Missing):
        return context
    return replace(context, snapshot=replace(context.snapshot, kernel_log=tuple(map(longer, events))))


def longer(event: KernelEvent) -> KernelEvent:
    restarted_by = None if event.restarted_by is None else f"{event.restarted_by} {TAIL}"
    return replace(event, text=f"{event.text} {TAIL}" if event.text else "", restarted_by=restarted_by)


@walk(KERNEL_LOG_CASES, lambda case: f"{case.check}:{case.code}")
def test_a_line_of_the_kernel_log_is_evidence_to_its_last_word(case: Case):
    context = lengthened(case.fires.context(look_at_machine(case.base)))
    results = run_checks(context, (CHECKS[case.check],))
    findings = [finding for result in results for finding in result.findings]
    assert case.code in {finding.code for finding in findings}
    lines = [fact.value for finding in findings for fact in finding.evidence if fact.name in WORDS_OF_A_LINE]
    assert all(str(text).endswith(LAST_WORD) for text in lines), lines
    shown = render_report_text(Report(verdict(results), results, context.snapshot))
    whole = {word for text in lines for word in str(text).split()}
    cut = [
        word
        for word in shown.split()
        if word.startswith("register") and word not in whole and word.rstrip(".)") not in whole
    ]
    assert cut == []
