from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.explanation import Echo, Verdict, VerdictKind
from gpudiag.render.style import columns
from gpudiag.render.verdict_text import render_verdict

VERDICT = Verdict(
    VerdictKind.RANK_FAILED, "Rank 3 on gpu-02 failed first: ValueError: no.", (3,), ("gpu-02",),
    log="node1.log", line=8,
    excerpt="[rank3]: ValueError: no", where="train.py:53 in step: raise ValueError",
    cause="The job's own code.", remedy="Mend it.",
    evidence=("the same at rank 5",), driver_errors=("Xid 31 on gpu-02 (dmesg:4)",),
    echoes=(Echo("the connection to another rank broke", 900, tuple(range(900)), ("gpu-01",), "node0.log",
        16),),
)  # fmt: skip


def test_the_first_lines_are_the_answer():
    lines = render_verdict(VERDICT)
    assert lines[:4] == [
        "Rank 3 on gpu-02 failed first: ValueError: no.",
        "  Line:      node1.log:8",
        "   | [rank3]: ValueError: no",
        "  Your line: train.py:53 in step: raise ValueError",
    ]
    assert lines.index("  Do:        Mend it.") < lines.index("Consequences, not causes (900 lines):")


def test_echoes_of_many_ranks_are_counted_and_not_listed():
    lines = render_verdict(VERDICT)
    assert " ".join(lines[lines.index("Consequences, not causes (900 lines):") + 1 :]).split() == (
        [
            "900",
            "x",
            "the",
            "connection",
            "to",
            "another",
            "rank",
            "broke",
            "by",
            "ranks",
            "0-899",
            "on",
            "gpu-01",
            "(node0.log:16)",
        ]
    )


def test_nothing_wrong_asks_for_nothing():
    assert render_verdict(Verdict(VerdictKind.NOTHING, "Nothing wrong found.")) == ["Nothing wrong found."]


@given(words=st.text(max_size=800), host=st.text(max_size=60))
def test_hostile_words_stay_on_their_lines(words, host):
    echo = Echo(words, 1, (1,), (host,), words, 1)
    hostile = Verdict(
        VerdictKind.RANK_MISSING, f"x{words}", (1,), (host,), host, words, words, 1, words, words, "", words,
        words, (words,), (words,), (echo,),
    )  # fmt: skip
    lines = render_verdict(hostile)
    assert all(character.isprintable() for line in lines for character in line)
    assert len(lines) < 120


def test_lines_fit_a_terminal():
    assert [line for line in render_verdict(VERDICT) if len(line) > columns()] == []
