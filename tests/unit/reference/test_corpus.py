import re

from gpudiag.reference.failures import failures
from tests.corpus.explained import NOTHING, answer_to, is_right, texts
from tests.walking import walk

# Of texts that nobody can tell apart by their words: none so far.
MISSES = ()


@walk(texts(), lambda text: f"{text.kind}/{text.name}")
def test_what_must_be_told_of_a_text_is_told(text):
    answer = answer_to(text.text)
    assert is_right(text.expected, answer) is (text.name not in MISSES), answer


def test_the_corpus_is_as_large_and_as_mixed_as_promised():
    foreign = [text for text in texts() if text.expected == NOTHING or text.expected.startswith("unknown:")]
    assert len(texts()) >= 350
    assert len(foreign) >= len(texts()) / 3
    assert len({text.expected for text in texts()}) > 150


def test_what_the_corpus_expects_exists():
    topics = {text.expected.removeprefix("symptom:") for text in texts()}
    named = {topic for topic in topics if re.fullmatch(r"[a-z_]+\.[a-z_]+", topic)}
    assert named - set(failures()) == set()


def test_prefixes_of_launchers_change_no_answer():
    prefixes = (
        "[rank3]: ",
        "[default0]:",
        "7: ",
        "[1,2]<stderr>:",
        "node12: ",
        "2025-11-21T10:00:00.123456789Z ",
    )
    for text in [text for text in texts() if text.kind in ("cuda", "data", "library", "unknown")]:
        plain = (
            text.text
            if not re.match(r"\[rank|\[1,|node\d|\{|\(Engine|\[?\d\d+\.|\w\w\w \d", text.text)
            else ""
        )
        for prefix in prefixes if plain and "\r" not in plain else ():
            prefixed = "".join(f"{prefix}{line}\n" for line in plain.splitlines())
            assert is_right(text.expected, answer_to(prefixed)), (prefix, text.name, answer_to(prefixed))
