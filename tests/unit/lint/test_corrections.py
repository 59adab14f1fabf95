"""What lint offers is Python: put in its place it parses, keeps what the statement gave, and the mistake is
gone.
"""

import ast
from collections import Counter

from gpudiag.lint.linter import lint_text
from gpudiag.lint.rules import RULES
from gpudiag.model.lint import LintFinding
from tests.corpus.linted import corpus_files
from tests.walking import walk

SCRIPTS = [
    *((rule.code, rule.read_examples().wrong) for rule in RULES if rule.code != "lint.syntax_error"),
    *(
        (path.name, path.read_text())
        for path in corpus_files()
        if path.suffix == ".py" and path.name != "broken.py"
    ),
]


def statement_at(tree: ast.Module, number: int) -> ast.stmt:
    """The innermost statement of a line."""
    around = [
        n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= number <= (n.end_lineno or 0)
    ]
    return max(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)))


def corrected(text: str, finding: LintFinding) -> str:
    """The script with what a finding offers in its place."""
    lines = text.splitlines()
    found = statement_at(ast.parse(text), finding.line)
    end = (found.body[0].lineno - 1) if hasattr(found, "body") else (found.end_lineno or found.lineno)
    if (
        isinstance(found, ast.ClassDef | ast.FunctionDef | ast.If | ast.For | ast.With | ast.While)
        and end == found.lineno - 1
    ):
        end = found.lineno  # a block on one line
    margin = lines[found.lineno - 1][: found.col_offset]
    place = finding.place
    if place is None:
        return "\n".join([*lines[: found.lineno - 1], margin + finding.fix, *lines[end:]])
    kept = [margin + "pass"] if place.moves else lines[found.lineno - 1 : end]
    placed = dict(enumerate(lines[: found.lineno - 1], 1))
    after = dict(enumerate(lines[end:], end + 1))
    added = " " * place.column + finding.fix
    out: list[str] = []
    for number in range(1, len(lines) + 2):
        if number == place.line:
            out.append(added)
        if number == found.lineno:
            out += kept
        elif number in placed or number in after:
            out.append({**placed, **after}[number])
    return "\n".join(out)


def kept_by(statement: ast.AST) -> set[str]:
    """What a statement gives: the names that it binds, and that it returns."""
    names = {
        ast.unparse(node)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return names | (
        {"return"} if any(isinstance(node, ast.Return) for node in ast.walk(statement)) else set()
    )


@walk(SCRIPTS, lambda item: item[0])
def test_what_is_offered_removes_the_mistake_and_drops_nothing(item) -> None:
    _, text = item
    findings = lint_text(text).findings
    before = Counter(finding.code for finding in findings)
    for finding in findings:
        assert finding.fix or finding.advice, finding.code
        if not finding.fix:
            continue
        after = corrected(text, finding)
        tree = ast.parse(after)
        left = Counter(other.code for other in lint_text(after).findings)
        assert left[finding.code] < before[finding.code], after
        found = statement_at(ast.parse(text), finding.line)
        if finding.place is None and not hasattr(found, "body"):
            offered = ast.parse(finding.fix.strip()) if "return" not in kept_by(found) else tree
            assert kept_by(found) <= kept_by(offered), finding.fix


def test_some_mistakes_have_advice_in_words_and_most_have_code() -> None:
    offered = [finding for _, text in SCRIPTS for finding in lint_text(text).findings]
    with_code = [finding for finding in offered if finding.fix]
    assert len(with_code) > len(offered) * 3 // 4
    assert all(not finding.advice.endswith(".") for finding in offered)
