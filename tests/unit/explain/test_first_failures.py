"""Kinds of answers of `gpudiag explain`, each walked over all failures, codes or forms of a line that it may
meet.
"""

import re
from io import BytesIO

from gpudiag.explain.answer import explain_logs, open_log
from gpudiag.explain.log_paths import parse_log_path, without_previous
from gpudiag.explain.recipe import explain_text
from gpudiag.model.explanation import VerdictKind
from gpudiag.reference.cuda_errors import cuda_errors
from gpudiag.reference.failures import failures
from gpudiag.reference.xid import XidKind, xids
from tests.corpus.jobs_explained import explain_case, job_cases, recorded_cases
from tests.unit.reference.failure_texts import OTHERS, TWENTY
from tests.walking import walk

LOST = (
    "[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process "
    "exiting prematurely.\n"
    "[rank0]: socketProgress: Connection closed by remote peer b3<47527>\n"
)
OF_THE_GPU = ("cuda.", "cublas.", "cudnn.", "gpu.", "nvlink.")
TEXTS = [
    (topic, text)
    for topic, text in [*((topic, text) for _, topic, text in TWENTY), *OTHERS]
    if topic.startswith(OF_THE_GPU)
]
CUDA_FAILURES = (
    *("1 'invalid argument'", "2 'out of memory'", "3 'initialization error'"),
    *("100 'no CUDA-capable device is detected'", "101 'invalid device ordinal'"),
    "214 'uncorrectable ECC error encountered'",
    "217 'peer access is not supported between these two devices'",
    *("304 'OS call failed or operation not supported on this OS'", "400 'invalid resource handle'"),
    *("700 'an illegal memory access was encountered'", "702 'the launch timed out and was terminated'"),
    *("710 'device-side assert triggered'", "719 'unspecified launch failure'"),
    *("801 'operation not supported'", "802 'system not yet initialized'", "999 'unknown error'"),
)
VERBS = tuple(
    """
    open_device alloc_pd create_cq create_qp modify_qp query_port query_gid post_send poll_cq reg_mr
    reg_mr_iova2 reg_dmabuf_mr
    """.split()
)
REASONS = (
    *("", " with error Bad address", " with error Cannot allocate memory"),
    *(" with error Connection timed out", " with error Invalid argument errno 22"),
    *(" with error Network is unreachable", " with error No such device"),
    *(" with error Operation not supported", " with 110 Connection timed out, on dev mlx5_1:1"),
)
WITHOUT_A_YEAR = (
    *("[rank1]:[E1120 08:41:10.526290891 x.cpp:1] ", "ERROR 11-20 08:41:10 [core.py:708] "),
    *("Nov 20 08:41:10 n1 app[7]: ", "[08:41:10] ", "08:41:10,123 ERROR "),
)


@walk(TEXTS, lambda pair: pair[0])
def test_the_rank_whose_gpu_failed_is_named_and_not_those_that_lost_it(pair):
    topic, text = pair
    verdict = explain_text(f"{LOST}[rank3]: {text}\n").verdict
    assert verdict.ranks == (3,), verdict.sentence
    assert verdict.topic == topic


@walk(CUDA_FAILURES)
def test_a_cuda_failure_that_nccl_names_is_what_failed_first(words):
    verdict = explain_text(
        f"{LOST}[rank3]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank3]: Last error:\n"
        f"[rank3]: Cuda failure {words}\n"
    ).verdict
    assert verdict.ranks == (3,), verdict.sentence
    assert words in verdict.excerpt


@walk([(verb, reason) for verb in VERBS for reason in REASONS], "".join)
def test_a_call_of_the_network_card_that_failed_is_never_told_as_a_closed_tcp_port(pair):
    verdict = explain_text(
        f"n1:20:21 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_{pair[0]} failed{pair[1]}\n"
    ).verdict
    assert verdict.topic in (
        "network.rdma_error",
        "network.rdma_not_opened",
        "network.rdma_unreachable",
        "network.gpu_direct_refused",
        "host.locked_memory_limit",
    ), verdict.sentence
    if "Cannot allocate memory" in pair[1]:
        assert verdict.topic == "host.locked_memory_limit"


@walk(WITHOUT_A_YEAR)
def test_a_time_is_told_as_its_line_gives_it(prefix):
    verdict = explain_text(
        f"{prefix}RuntimeError: CUDA error: an illegal memory access was encountered\n"
    ).verdict
    assert "08:41:10" in verdict.at
    assert not re.match(r"190\d", verdict.at), verdict.at


@walk(
    (
        "Aborted (core dumped)",
        "Fatal Python error: Aborted",
        "[rank: 2] Child process with PID 7 terminated with code -6. Forcefully",
        "x exits with return code = -6",
        "srun: error: n1: task 2: Aborted (core dumped)",
        "./run.sh: line 3:  4471 Aborted   python train.py",
    )
)
def test_an_abort_by_the_watchdog_blames_nobody_who_waited(line):
    waited = "".join(
        f"[rank{rank}]:[E1120 10:31:12.1 x.cpp:616] [Rank {rank}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
        "ran for 600001 milliseconds before timing out.\n"
        for rank in (1, 2, 3)
    )
    verdict = explain_text(f"{waited}{line}\n").verdict
    assert verdict.kind is VerdictKind.RANK_MISSING
    assert verdict.ranks == (0,), verdict.sentence


def test_a_failure_that_is_only_a_symptom_is_about_others_than_the_gpu_that_shows_it():
    assert [
        name
        for name, failure in failures().items()
        if failure.role.value == "symptom" and name.startswith(OF_THE_GPU)
    ] == []


@walk(
    (
        "rank_3.log",
        "rank3.txt",
        "run-rank-3.err",
        "global_rank_3.log",
        "node_rank_1-rank_3.log",
        "node1/rank3.log",
        "dp_rank_0_rank_3.log",
    )
)
def test_a_path_that_names_a_rank_names_it(path):
    assert parse_log_path(f"/logs/{path}").rank == 3


@walk(
    [
        f"{what}{dash}rank{dash}3.log"
        for what in (
            "node",
            "machine",
            "host",
            "local",
            "group",
            "role",
            "dp",
            "tp",
            "pp",
            "ep",
            "cp",
            "data",
        )
        for dash in "_-"
    ]
)
def test_a_path_that_names_the_rank_of_a_node_or_within_a_group_names_no_rank_of_the_job(path):
    assert parse_log_path(f"/logs/{path}").rank is None


OF_MACHINES = [
    (topic, text)
    for topic, text in [*((topic, text) for _, topic, text in TWENTY), *OTHERS]
    if failures()[topic].owner.value in ("hardware", "host")
    and failures()[topic].role.value != "symptom"
    and "\\n" not in text
]


@walk(OF_MACHINES, lambda pair: pair[0])
def test_a_failure_of_a_machine_that_all_ranks_report_does_not_clear_the_machine(pair):
    verdict = explain_text("".join(f"[rank{rank}]: {pair[1]}\n" for rank in range(4))).verdict
    assert "It is the script" not in verdict.sentence, verdict.sentence


def test_a_nan_on_all_ranks_is_not_said_to_be_no_machines_fault():
    text = "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."
    verdict = explain_text("".join(f"[rank{rank}]: {text}\n" for rank in range(4))).verdict
    assert verdict.kind is VerdictKind.ALL_FAILED
    assert "It is the script" not in verdict.sentence


def in_one_line(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


@walk(
    [case for case in (*job_cases(), *recorded_cases()) if not case.logs[0][1].startswith("{")],
    lambda case: f"{case.kind}/{case.name}",
)
def test_what_is_quoted_stands_in_the_line_that_is_named(case):
    verdict = explain_case(case).verdict
    if verdict is None or not verdict.excerpt:
        return
    lines = dict(case.logs)[verdict.log].split("\n")
    assert in_one_line(verdict.excerpt) in in_one_line(" ".join(lines[verdict.line - 1 : verdict.line + 3]))


def test_the_words_that_matter_are_quoted_of_a_long_line():
    line = (
        f"{'x ' * 400}nvidia-container-cli: mount error: write error: /sys/fs/cgroup/devices.allow: "
        f"operation not permitted{' y' * 400}"
    )
    excerpt = explain_text(line).verdict.excerpt
    assert "devices.allow: operation not permitted" in excerpt
    assert excerpt in line


def test_a_log_that_ends_in_the_middle_of_a_line_is_not_called_whole():
    steps = "".join(
        f"2026-11-20 10:15:2{step},100 INFO trainer: step {step} of the run: loss 2.0 lr 1e-4\n"
        for step in range(4)
    )
    for end, is_cut in (
        ("2026-11-20 10:15:30,100 INFO trainer: step 12 of the run: lo", True),
        ("", False),
        ("goodbye", False),
    ):
        told = explain_logs([open_log("a.log", BytesIO(f"{steps}{end}".encode()))])
        assert ("ends in the middle of a line" in told.verdict.sentence) is is_cut, end


def test_the_log_of_an_earlier_life_is_known_by_its_name():
    for name in ("w-0-previous.log", "w-0.previous.log", "w-0_prev.log", "pods/w-0 (previous).log"):
        assert without_previous(name).replace(" .", ".").endswith("w-0.log"), name
    assert without_previous("preview.log") == "preview.log"


REFUSED = (1, 2, 4, 9, 10, 11)  # of ibv_wc_status: the request itself is wrong, and no cable
FORMS = (
    "with status={} opcode=1 len=5 vendor err 1",
    "with error {}, opcode 1",
    "with status=IBV_WC_X_ERR({}) opcode=1",
)


@walk([(status, form) for status in range(1, 24) for form in FORMS])
def test_what_a_completion_of_a_network_card_means_is_told_by_its_status(pair):
    status, form = pair
    line = (
        "n1:20:21 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : "
        f"Got completion from peer 10.0.0.2<3> {form.format(status)}\n"
    )
    assert explain_text(line).verdict.topic == f"network.rdma_{'refused' if status in REFUSED else 'error'}"


@walk(sorted({error.text for error in cuda_errors().values() if error.text}))
def test_no_error_of_an_amd_gpu_gets_the_remedy_of_an_nvidia_gpu(text):
    assert explain_text(f"RuntimeError: HIP error: {text}\n").verdict.topic.startswith("rocm.")


@walk([code for code, xid in xids().items() if xid.kind is XidKind.HARDWARE])
def test_the_xid_that_the_driver_names_as_the_cause_is_told(code):
    line = (
        f"NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid {code}\n"
    )
    verdict = explain_text(line).verdict
    assert (verdict.kind, verdict.topic) == (VerdictKind.MACHINE_FAILED, f"Xid {code}")


@walk(("write to /sys/fs/cgroup/x/cgroup.procs", "inotify_add_watch: /data", "semget", "ibv_create_qp"))
def test_a_shortage_that_is_no_disk_is_not_told_as_a_full_disk(what):
    assert explain_text(f"error: {what} failed: No space left on device\n").verdict.topic != "disk.full"
    assert (
        explain_text("OSError: [Errno 28] No space left on device: '/data/x.pt'\n").verdict.topic
        == "disk.full"
    )


@walk(
    (
        "node r7 revoked",
        "step 4: request exceeded its quota",
        "worker 3 timed out",
        "Aborting the ring",
        "open failed",
    )
)
def test_words_of_a_failure_that_nobody_knows_are_shown_unless_the_run_moves_on(line):
    assert "not known" in explain_text(f"{line}\n").verdict.sentence
    assert explain_text(f"{line}\nstep 10 loss 3.2\n").verdict.sentence.startswith("Nothing wrong")
