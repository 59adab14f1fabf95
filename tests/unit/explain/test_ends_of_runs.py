"""What failed after a run had ended, and what a run did without: by the lines of one log, or of two."""

from io import BytesIO

from gpudiag.explain.answer import explain_logs, open_log
from tests.walking import walk

CRASH = (
    "E0107 10:11:41.101000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -11)"
    " local_rank: 2 (pid: 1267) of binary: /usr/bin/python3\n"
)
ENDS = (
    "Training complete\n",
    "[rank0]: Training finished in 3611 s\n",
    "{'train_runtime': 3611.12, 'train_samples_per_second': 8.1, 'epoch': 3.0}\n",
    "  train_runtime            = 1:00:11.12\n",
    "`Trainer.fit` stopped: `max_epochs=10` reached.\n",
    "exiting program after 500000 iterations\n",
    "[after training is done] datetime: 2025-01-07 10:10:00\n",
    "(TaskRunner pid=9911) Final validation metrics: {'val/test_score/gsm8k': 0.31}\n",
)
NO_ENDS = (
    "Training will be complete when all 10 epochs are done\n",
    "100%|##########| 1800/1800 [1:00:11<00:00,  2.01s/it]\n",
    "`Trainer.fit` stopped: received a signal\n",
)
NO_DEVICE = "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\n"
OF_TENSORFLOW = f"2026-05-15 11:47:40.484823: E external/local_xla/cuda_driver.cc:282] {NO_DEVICE}"
TRAPPED = "  what():  Failed: CUDA error /w/deep_ep.cpp:83 'unspecified launch failure'\n"
WAITED = "DeepEP dispatch NVL receiver timeout, channel: 6, RDMA: 0, nvl: 0, src NVL: 5, head: 3, tail: 3\n"


def verdict_on(**logs: str):
    return explain_logs(open_log(name, BytesIO(text.encode())) for name, text in logs.items()).verdict


@walk(ENDS)
def test_a_crash_after_the_end_of_training_is_told_with_the_line_of_that_end(line):
    verdict = verdict_on(log=f"step 10 loss 2.0\n{line}{CRASH}")
    assert verdict.topic == "rank.crashed"
    assert verdict.sentence.startswith("The training had ended (log:2), and what failed came after it.")


@walk(NO_ENDS)
def test_a_line_that_only_looks_like_an_end_is_none(line):
    assert "had ended" not in verdict_on(log=f"step 10 loss 2.0\n{line}{CRASH}").sentence


def test_a_run_that_makes_steps_after_an_earlier_one_ended_has_not_ended():
    text = f"step 10 loss 2.0\nTraining complete\nstep 1 loss 4.0\nstep 2 loss 3.9\n{CRASH}"
    assert "had ended" not in verdict_on(log=text).sentence


def test_the_end_in_another_ranks_log_counts_where_it_is_earlier():
    failed = "[rank3]:[E107 10:11:40.101010 x.cpp:1] CUDA error: an illegal memory access was encountered\n"
    for at, is_before in (("10:11:20", True), ("10:11:59", False)):
        end = f"2025-01-07 {at},101 - INFO - Training complete\n"
        verdict = verdict_on(rank_0=end, rank_3=f"[rank3]: step 10 loss 2.0\n{failed}")
        assert verdict.ranks == (3,)
        assert ("had ended" in verdict.sentence) is is_before, at


def test_a_gpu_that_tensorflow_does_without_is_no_cause_and_one_that_torch_asks_for_is():
    later = "2026-05-15 11:58:10.484823: I make_examples.cc:11] wrote 120 examples\n"
    assert verdict_on(log=OF_TENSORFLOW + later).kind.value == "nothing_wrong"
    assert verdict_on(log=OF_TENSORFLOW).topic == "cuda.no_device"
    asked = "RuntimeError: No CUDA GPUs are available\n"
    assert verdict_on(log=OF_TENSORFLOW + later + asked).topic == "cuda.no_device"


def test_a_kernel_that_ends_itself_after_a_wait_follows_from_it_and_one_before_does_not():
    assert verdict_on(log=WAITED + TRAPPED).topic == "collective.dispatch_timed_out"
    assert verdict_on(log=TRAPPED + WAITED).topic == "cuda.launch_failure"
