"""Every rule is proved by its own examples, and all together by the corpus."""

import ast
from collections import Counter

import pytest

from gpudiag.lint.linter import lint_file, lint_text
from gpudiag.lint.rule import EXAMPLES, Rule
from gpudiag.lint.rules import RULES
from gpudiag.model.lint import Severity
from tests.corpus.linted import corpus_files, expected_places
from tests.walking import walk


def code_of(rule: Rule) -> str:
    return rule.code


@walk(RULES, code_of)
def test_the_wrong_example_is_found_and_nothing_else(rule: Rule) -> None:
    assert {finding.code for finding in lint_text(rule.read_examples().wrong).findings} == {rule.code}


@walk(RULES, code_of)
def test_the_right_example_and_the_near_miss_are_clean(rule: Rule) -> None:
    examples = rule.read_examples()
    assert lint_text(examples.right).findings == ()
    assert lint_text(examples.near_miss).findings == ()


@walk(RULES, code_of)
def test_the_mistake_is_found_in_a_function_and_in_a_page(rule: Rule) -> None:
    wrong = rule.read_examples().wrong
    if rule.code not in ("lint.syntax_error", "lint.destroy_missing", "lint.undefined_name"):
        page = f"# A page\n\n- item\n\n  ```{{.python}}\n{indented(wrong, '  ')}  ```\n"
        if rule.code not in SCRIPTS_ONLY:
            assert rule.code in {finding.code for finding in lint_text(page, suffix=".md").findings}
    with_crlf = wrong.replace("\n", "\r\n")
    assert [f.line for f in lint_text(with_crlf).findings] == [f.line for f in lint_text(wrong).findings]


# What a page leaves out stands elsewhere, or its fences do not run one after the other.
SCRIPTS_ONLY = {"lint.used_too_early", "lint.nccl_on_cpu", "lint.spawn_mistake"}


@walk(RULES, code_of)
def test_the_entry_of_the_catalogue_is_whole(rule: Rule) -> None:
    assert rule.why.endswith(".")
    assert not rule.title.endswith(".")
    examples = rule.read_examples()
    assert len(set(examples)) == len(examples)
    ast.parse(examples.right)
    ast.parse(examples.near_miss)
    for finding in lint_text(examples.wrong).findings:
        assert finding.severity in Severity
        assert finding.fix or finding.advice or rule.code == "lint.syntax_error"
        assert not finding.message.endswith(".")
        assert finding.source in examples.wrong


def test_every_file_is_a_rule_and_has_its_examples() -> None:
    assert len(RULES) > 50
    for folder in (EXAMPLES.parent, EXAMPLES):
        names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        assert sorted(names) == sorted(rule.name for rule in RULES), folder


def test_a_file_of_examples_has_three_cells(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("gpudiag.lint.rule.EXAMPLES", tmp_path)
    (tmp_path / f"{RULES[0].name}.py").write_text("# %% wrong\nx = 1\n\n\n# %% right\nx = 2\n")
    with pytest.raises(ValueError, match="three cells"):
        RULES[0].read_examples()


@walk(corpus_files(), lambda path: path.name)
def test_what_is_planted_is_found_and_nothing_else(path) -> None:
    found = Counter((finding.line, finding.code) for finding in lint_file(path).findings)
    assert found == expected_places(path)


def test_the_corpus_has_wrong_and_right_scripts() -> None:
    planted = [path for path in corpus_files() if expected_places(path)]
    assert len(planted) > 15
    assert len(corpus_files()) - len(planted) > 7


def test_what_rules_share_finds_aliases_and_helpers() -> None:
    """The same mistake under another name, behind a function, a class and a lambda's argument."""
    text = """
import torch.distributed as td
from torch.distributed import barrier as meet

def rank_of():
    return td.get_rank()

class Job:
    def __init__(self):
        self.first = rank_of() == 0

    def run(self):
        if self.first:
            meet()

td.init_process_group("gloo")
Job().run()
td.destroy_process_group()
"""
    assert [(f.line, f.code) for f in lint_text(text).findings] == [(14, "lint.collective_on_one_rank")]


def indented(text: str, margin: str) -> str:
    return "".join(f"{margin}{line}".rstrip() + "\n" for line in text.splitlines())
