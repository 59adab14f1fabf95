"""Which known word a person meant."""

from gpudiag.cli.commands import COMMANDS
from gpudiag.model.nearest import did_you_mean, find_nearest
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.training import STRATEGIES
from gpudiag.simulate.faults.table import FAULTS
from gpudiag.simulate.machine_file import base_machines
from tests.walking import walk

KNOWN = {
    "commands": tuple(COMMANDS),
    "operations": tuple(OPERATIONS),
    "strategies": tuple(STRATEGIES),
    "machines": tuple(base_machines()),
    "faults": tuple(kind.usage.partition(":")[0] for kind in FAULTS),
}


@walk([(what, word) for what, words in KNOWN.items() for word in words])
def test_capitals_dashes_and_underscores_do_not_count(case: tuple[str, str]) -> None:
    what, word = case
    for typed in (word.upper(), word.replace("_", "-"), word.replace("-", "_"), word.replace("_", "")):
        assert find_nearest(typed, KNOWN[what]) == word, typed


def test_a_slip_is_understood_and_a_guess_is_not_made() -> None:
    assert find_nearest("prefligth", COMMANDS) == "preflight"
    assert find_nearest("ZeRO-3", STRATEGIES) == "zero3"
    assert find_nearest("zero", STRATEGIES) is None  # there are four
    assert find_nearest("--json", ("--version", "--help")) is None
    assert find_nearest("", COMMANDS) is None


def test_the_question_is_asked_where_one_word_is_near():
    assert did_you_mean("trian", ("train", "list"), "; ") == "; did you mean train?"
    assert did_you_mean("xyzzy", ("train", "list"), "; ") == ""
