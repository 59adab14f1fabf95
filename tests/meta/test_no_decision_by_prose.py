"""Nothing decides by a sentence of its own: no text of a finding, a reason or an error is searched or
compared.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
# Words that people read. Two of the same kind may be compared, so that one is printed once.
_TEXTS = frozenset({"message", "detail", "remedy"})
_METHODS = frozenset(
    {"startswith", "endswith", "find", "index", "partition", "rpartition", "removeprefix", "removesuffix"}
)
_PATTERNS = frozenset({"search", "match", "fullmatch", "findall", "finditer"})
# Houses of their own: a script's lines, and NCCL's, whose `message` is what NCCL printed.
_ELSEWHERE = ("gpudiag/lint/", "gpudiag/simulate/", "gpudiag/explain/nccl/")
# Where the words are not our own, or nothing is decided by them.
_ALLOWED = {
    "gpudiag/checks/job/facts.py:remedy_of": "what a recorded look has of a lock file: its document has no other field",
    "gpudiag/checks/job/verdict.py:_idle_limit": "the same",
    "gpudiag/checks/software/torch_build.py:cuda_context": "CUDA's own words, by reference/cuda_errors.toml",
    "gpudiag/probe/torch/answer.py:_status": "torch's own words for a driver that lists no GPU",
    "gpudiag/checks/training/exceptions.py:join_alike": "ranks that ended in the same words are one finding",
    "gpudiag/checks/training/exceptions.py:_join": "the same: the name of one rank gives way to the names of all",
    "gpudiag/checks/training/script.py:_has_line": "a line of the user's program, which is quoted once",
    "gpudiag/checks/ranks/incidents.py:_raised": "the exception of a rank, in its own words",
    "gpudiag/probe/nvml/careful.py:ask_around_crashes": "the words are shortened for a list",
    "gpudiag/ranks/diagnosis/evidence.py:_how_it_ended": "the first line of an exception",
    "gpudiag/render/judge_text.py:_table": "a remedy is printed once",
    "gpudiag/render/reason.py:_shortened": "a line has room for some of its clauses",
    "gpudiag/watch/finding_table.py:_words_of": "the subject is printed once",
}


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _TEXTS


def _decides(node: ast.AST) -> bool:
    """Whether the expression asks what such a text says."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            asked = [op for op in ops if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)]
            sides = [left, *comparators]
            return bool(asked) and any(map(_is_text, sides)) and not all(map(_is_text, sides))
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args):
            return (name in _METHODS and (_is_text(value) or _is_reason(value))) or (
                name in _PATTERNS and any(_is_text(one) or _is_remedy(one) for one in args)
            )
    return False


def _is_remedy(node: ast.expr) -> bool:
    """Whether it is a variable with what to do; one named `message` may hold a program's own words."""
    return isinstance(node, ast.Name) and node.id == "remedy"


def _is_reason(node: ast.expr) -> bool:
    """Whether it is why a check gave no result, or a variable with one of the texts."""
    return (isinstance(node, ast.Attribute) and node.attr == "reason") or (
        isinstance(node, ast.Name) and node.id in (*_TEXTS, "reason")
    )


def _decisions(path: Path) -> Iterator[str]:
    """`FILE:FUNCTION` of each place."""
    name = path.relative_to(_ROOT).as_posix()

    def walk(node: ast.AST, function: str) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if _decides(node):
            yield f"{name}:{function}"
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    yield from walk(ast.parse(path.read_text()), "")


def test_no_text_of_ours_decides() -> None:
    files = [*(_ROOT / "gpudiag").rglob("*.py"), *(_ROOT / "api").rglob("*.py")]
    own = [path for path in files if not path.relative_to(_ROOT).as_posix().startswith(_ELSEWHERE)]
    found = {place for path in own for place in _decisions(path)}
    assert sorted(found - _ALLOWED.keys()) == [], "give what decides a value of its own"
    assert sorted(_ALLOWED.keys() - found) == [], "no longer needed in _ALLOWED"


def test_the_rule_sees_what_it_forbids() -> None:
    wrong = (
        *("finding.message.startswith('rank 3')", "'lost' in one.missing.detail"),
        *("result.reason.startswith(UNREAD)", "re.search('power', finding.remedy)"),
        *("missing.detail == 'gone'", "reason.startswith(NVML_REASONS)", "POWER.search(remedy)"),
    )
    right = (
        "one.remedy != other.remedy",
        "missing.reason is MissingReason.ERROR",
        "finding.code.startswith('gpu.')",
    )
    assert all(_decides(ast.parse(text, mode="eval").body) for text in wrong)
    assert not any(_decides(ast.parse(text, mode="eval").body) for text in right)
