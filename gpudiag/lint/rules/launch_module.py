"""`python -m torch.distributed.launch`, which torchrun replaces."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.reader import Line
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.model.lint import Edit, Severity

COMMAND = re.compile(
    r"(?:[\w./{}$\"-]*python[\w.]*\"?(?:\s+-u)?)\s+-m\s+torch\.distributed\.launch\b(?:\s+--use[_-]env\b)?"
)
_RUNNERS = frozenset(
    """
    os.system os.popen subprocess.run subprocess.call subprocess.check_call subprocess.Popen
    subprocess.check_output
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    for name in ("torch.distributed.launch", "torch.distributed.launch.main"):
        for step in program.calls(name):
            yield Mistake(
                step.node, "torch.distributed.launch is deprecated", "torchrun --nproc-per-node N train.py"
            )
    for step, text in commands_of(program):
        if COMMAND.search(text) or "-m torch.distributed.launch" in text:
            yield Mistake(
                step.node,
                "the script starts its ranks by the deprecated torch.distributed.launch",
                _fixed(program.statement_text(step.node)),
            )


def commands_of(program: Program) -> Iterator[tuple[Step, str]]:
    """The steps that run a command, each with the literal text of the command."""
    for runner in sorted(_RUNNERS):
        for step in program.calls(runner):
            if isinstance(step.node, ast.Call) and step.node.args:
                yield step, " ".join(_words(program, step.node.args[0]))


def _words(program: Program, node: ast.AST, depth: int = 4) -> Iterator[str]:
    """The texts in an argument: of a literal, a list, a name of one, and what is joined to it."""
    if isinstance(node, ast.Name | ast.Attribute) and depth:
        for binding in program.values.reaching(node):
            if binding.value is not None and not binding.path:
                yield from _words(program, binding.value, depth - 1)
    elif isinstance(node, ast.Constant):
        yield node.value if isinstance(node.value, str) else str(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "${VALUE}" for part in node.values
        )
    else:
        for child in ast.iter_child_nodes(node):
            yield from _words(program, child, depth)


def find_commands(lines: tuple[Line, ...], *, run: bool, editable: bool) -> Iterator[Mistake]:
    """The commands of a page or notebook that use the old launcher; one that is only shown is a note."""
    for line in lines:
        found = COMMAND.search(line.text)
        if found:
            edits = (Edit(line.number, line.shift + found.start(), line.shift + found.end(), "torchrun"),)
            yield Mistake(
                ast.Pass(),
                "torch.distributed.launch is deprecated, and will be removed",
                _fixed(line.text.strip()),
                edits if editable else (),
                None if run else Severity.NOTE,
                line,
            )


def _fixed(text: str) -> str:
    text = COMMAND.sub("torchrun", text)
    return re.sub(r"'-m',\s*'torch\.distributed\.launch'", "'-m', 'torch.distributed.run'", text)


RULE = Rule(
    title="ranks are started by torch.distributed.launch",
    why=(
        "torch 2.13 warns that the module will be removed. torchrun takes the same arguments and always "
        "gives the rank by the environment; a script that reads --local_rank must read LOCAL_RANK."
    ),
    find=_find,
    find_commands=find_commands,
    fixes=True,
)
