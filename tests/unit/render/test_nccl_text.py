from dataclasses import replace
from io import BytesIO

from hypothesis import given
from hypothesis import strategies as st

from gpudiag.explain.answer import explain_logs, open_log
from gpudiag.model.nccl_log import LogPlace
from gpudiag.render.explain_text import render_log_explanation
from gpudiag.render.nccl_text import render_nccl
from tests.corpus.nccl_jobs import NcclJob, job_log

SLOW = NcclJob((2, 28), hosts=2, gpu_direct=False, dma_buf=False, settings={"NCCL_ALGO": "Ring"})


def answer_to(job):
    return explain_logs([open_log("job.log", BytesIO(job_log(job).encode()))])


def test_a_finding_has_its_line_its_place_and_what_to_do():
    answer = answer_to(SLOW)
    text = render_log_explanation(answer)
    assert answer.nccl is not None
    (finding,) = answer.nccl.findings
    assert f"WARN {finding.code}: ranks 0-7 on node-0, ranks 8-15 on node-1" in text
    assert f"job.log:{finding.evidence[0].line}\n" in text
    assert "modprobe nvidia_peermem" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_what_nccl_chose_is_told_of_a_healthy_job():
    text = render_log_explanation(answer_to(NcclJob((2, 28), hosts=2, nvls=True, nvls_channels=16)))
    assert "NCCL 2.28.9+cuda13.0, 16 ranks on node-0, node-1\n" in text
    for words in (
        "IB over mlx5_0:1/IB",
        "P2P/CUMEM: 16 pairs",
        "NET/IB/GDRDMA: 16 pairs",
        "16 NVLS",
        "by rank 15",
    ):
        assert words in text
    assert " WARN " not in text


def test_ranks_without_lines_and_those_that_never_ended_are_told():
    first = "\n".join(
        line for line in job_log(replace(SLOW, ends=False)).splitlines() if line.startswith("node-0")
    )
    text = render_log_explanation(explain_logs([open_log("a.log", BytesIO(first.encode()))]))
    assert "8 of 16 have lines here" in text
    assert "no line has Init COMPLETE" in " ".join(text.split())


NCCL = answer_to(SLOW).nccl


@given(words=st.text(max_size=3000))
def test_hostile_texts_stay_on_their_lines(words):
    nccl = NCCL
    assert nccl is not None
    finding = replace(nccl.findings[0], message=words, evidence=(LogPlace(words, 1, words),))
    process = replace(nccl.processes[0], host=words, network=words, settings={words: words})
    lines = render_nccl(
        replace(nccl, findings=(finding,), processes=(process,), hosts=(words,), versions=(words,))
    )
    assert all(character.isprintable() for line in lines for character in line)
    assert len(lines) < 60
