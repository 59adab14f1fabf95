from gpudiag.service.run_process import sentence_of


def test_a_failed_run_says_the_sentence_and_not_only_its_hint():
    lines = [
        "progress",
        "gpudiag: torch is not installed, and ranks need it",
        "  pip install 'gpudiag[torch]'",
    ]
    assert sentence_of(lines) == "torch is not installed, and ranks need it; pip install 'gpudiag[torch]'"


def test_the_last_sentence_counts():
    assert sentence_of(["gpudiag: the first", "gpudiag: the second"]) == "the second"


def test_without_a_sentence_the_last_line_is_told():
    assert sentence_of(["Traceback (most recent call last):", "  ValueError: x"]) == "ValueError: x"


def test_a_run_that_could_not_tell_says_its_verdict_and_not_the_last_hint():
    lines = [
        "ERROR CPU ONLY: ddp on 2 ranks: 0 of 6 steps were verified,",
        "  and gpudiag found no reason.",
        "train.incomplete: a1",
        "Next: gpudiag explain train.incomplete | gpudiag nccl-test",
    ]
    said = "ERROR CPU ONLY: ddp on 2 ranks: 0 of 6 steps were verified, and gpudiag found no reason."
    assert sentence_of(lines) == said
