"""Loops that only ask if something has come, by source: `while not done(): sleep(1)`, `while not flag: pass`.

Whoever is in one takes processor time, is seen at several lines and counts its attempts, and yet has done
nothing. So a loop counts as polling only where nothing in its body can be work: it asks, it waits, it logs,
and leaves the loop with what it got. A loop whose body calls anything else is none, whatever it waits for.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence

_MOST_LINES = 120  # of a loop, and of what stands before the line in it
# Calls that ask or wait, by their last name; what logs, counts time and compares is no work either.
_ASKS = frozenset(
    """
    sleep wait wait_for poll select sched_yield pause acquire is_set is_alive done ready test query
    empty qsize exists isfile isdir is_file is_dir lexists stat lstat getmtime getsize listdir glob get
    get_nowait check num_keys is_completed returncode getppid getpid kill head lockf flock time
    monotonic perf_counter time_ns now len all any min max int float bool str bytes range isinstance
    getattr hasattr locked print debug info warning error log flush format join append unpack
    unpack_from from_bytes load_acquire read_flag value item timedelta uniform random
    """.split()
)
_WAITS = frozenset(
    (
        *("sleep", "wait", "wait_for", "poll", "select", "sched_yield", "pause", "get", "get_nowait"),
        *("acquire", "lockf", "flock"),
    )
)
_HEAD = re.compile(r"(async\s+)?def\b|class\b")


def find_poll_loop(lines: Sequence[str], number: int) -> str:
    """`while True (line 32)`: the innermost `while` around a line, where it only polls.

    It is empty for every other place.
    """
    block = _loop_around(lines, number)
    if block is None:
        return ""
    start, text = block
    try:
        loop = ast.parse(text).body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if (
        not isinstance(loop, ast.While)
        or number > start + (loop.end_lineno or 0) - 1
        or not _only_polls(loop)
        or _is_leaving(loop, number - start + 1)
    ):
        return ""
    condition = " ".join(ast.unparse(loop.test).split())
    return f"while {condition if len(condition) <= 60 else condition[:58] + '..'} (line {start})"


def _loop_around(lines: Sequence[str], number: int) -> tuple[int, str] | None:
    """Where the innermost `while` around a line begins, and its text.

    It is None where there is none in its function.
    """
    if not 0 < number <= len(lines) or not lines[number - 1].strip():
        return None
    inner = _indent(lines[number - 1]) + (1 if lines[number - 1].lstrip().startswith("while ") else 0)
    for place in range(number - 1, max(-1, number - 1 - _MOST_LINES), -1):
        line = lines[place]
        words = line.strip()
        if not words or words.startswith("#") or _indent(line) >= inner:
            continue
        inner = _indent(line)
        if words.startswith(("while ", "while(")):
            return place + 1, _block(lines, place)
        if words.startswith("for ") or _HEAD.match(words):
            return None
    return None


def _block(lines: Sequence[str], place: int) -> str:
    """A compound statement from its first line on, with what is indented below it."""
    own = _indent(lines[place])
    end = place + 1
    while end < min(len(lines), place + _MOST_LINES):
        line = lines[end]
        if line.strip() and _indent(line) <= own and not line.lstrip().startswith((")", "]", "}")):
            break
        end += 1
    return textwrap.dedent("\n".join(lines[place:end]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _only_polls(loop: ast.While) -> bool:
    """Whether nothing in a loop is work, and it waits by a call, or has nothing else to do than to ask."""
    own_methods = {name for name in _called(loop.test)}
    in_body = [name for one in loop.body for name in _called(one)]
    if any(isinstance(one, ast.Await | ast.Yield | ast.YieldFrom) for one in ast.walk(loop)):
        return False
    if any(isinstance(one, ast.For | ast.With | ast.AsyncFor | ast.AsyncWith) for one in ast.walk(loop)):
        return False
    waits = any(name in _WAITS for name in in_body)
    # What the condition asks may be a function of the user's where the body only waits for its answer.
    known = _ASKS | (own_methods if waits or (not in_body and own_methods <= _ASKS) else frozenset())
    if not waits and any(isinstance(one, ast.BinOp) for one in ast.walk(loop)):
        return False  # it computes
    return all(name in known or _leaves(loop, name) for name in (*in_body, *own_methods)) and not _writes(
        loop
    )


def _called(node: ast.AST) -> Iterator[str]:
    """The last names of what is called in a node: `sleep` of `time.sleep(1)`."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            function = one.func
            if isinstance(function, ast.Attribute):
                yield function.attr
            else:
                yield function.id if isinstance(function, ast.Name) else "?"


def _leaves(loop: ast.While, name: str) -> bool:
    """Whether a function is called only where the loop ends: in a `raise`, or in what is returned."""
    inside = [one for one in ast.walk(loop) if isinstance(one, ast.Raise | ast.Return)]
    total = sum(called == name for called in _called(loop))
    return total == sum(called == name for one in inside for called in _called(one))


def _is_leaving(loop: ast.While, number: int) -> bool:
    """Whether a line works on what leaves the loop: `return load()` in a `try`, in a loop of attempts."""
    tries = [one for node in ast.walk(loop) if isinstance(node, ast.Try) for one in node.body]
    return any(
        isinstance(one, ast.Return)
        and one.lineno <= number <= (one.end_lineno or one.lineno)
        and not _ASKS.issuperset(_called(one))
        for statement in tries
        for one in ast.walk(statement)
    )


def _writes(loop: ast.While) -> bool:
    """Whether the loop stores into what others see: an item or a slice, which is what work leaves behind."""
    for one in ast.walk(loop):
        targets = (
            one.targets
            if isinstance(one, ast.Assign)
            else [one.target]
            if isinstance(one, ast.AugAssign)
            else []
        )
        if any(isinstance(target, ast.Subscript) for target in targets):
            return True
    return False
