"""`python -m torch.distributed.launch`, which torchrun replaces."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.reader import Line
from gpudiag.lint.rule import Rule
from gpudiag.model.lint import Edit, Severity

COMMAND = re.compile(
    r"(?:[\w./{}$\"-]*python[\w.]*\"?(?:\s+-u)?)\s+-m\s+torch\.distributed\.launch\b(?:\s+--use[_-]env\b)?"
)
_RUNNERS = frozenset({"os.system", "os.popen", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen", "subprocess.check_output"})  # fmt: skip


def _find(program: Program) -> Iterator[Mistake]:
    for name in ("torch.distributed.launch", "torch.distributed.launch.main"):
        for step in program.calls(name):
            yield Mistake(
                step.node, "torch.distributed.launch is deprecated", "torchrun --nproc-per-node N train.py"
            )
    for runner in sorted(_RUNNERS):
        for step in program.calls(runner):
            texts = [
                n.value
                for n in ast.walk(step.node)
                if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            if any(COMMAND.search(text) for text in texts) or "torch.distributed.launch" in texts:
                yield Mistake(step.node, "the script starts its ranks by the deprecated torch.distributed.launch", _mended(program.statement_text(step.node)))  # fmt: skip


def find_commands(lines: tuple[Line, ...], *, run: bool, editable: bool) -> Iterator[Mistake]:
    """The commands of a page or notebook that start ranks by the old launcher; a command that is only shown is a note."""
    for line in lines:
        found = COMMAND.search(line.text)
        if found:
            edits = (Edit(line.number, line.shift + found.start(), line.shift + found.end(), "torchrun"),)
            yield Mistake(
                ast.Pass(),
                "torch.distributed.launch is deprecated, and will be removed",
                _mended(line.text.strip()),
                edits if editable else (),
                None if run else Severity.NOTE,
                line,
            )


def _mended(text: str) -> str:
    text = COMMAND.sub("torchrun", text)
    return re.sub(r"'-m',\s*'torch\.distributed\.launch'", "'-m', 'torch.distributed.run'", text)


RULE = Rule(
    code="lint.launch_module",
    severity=Severity.FINDING,
    title="ranks are started by torch.distributed.launch",
    why="torch 2.13 warns that the module will be removed. torchrun takes the same arguments and always gives the rank by the environment; a script that reads --local_rank must read LOCAL_RANK.",
    wrong="""\
import subprocess

subprocess.run(
    "python -m torch.distributed.launch --nproc_per_node=4 train.py",
    shell=True,
    check=True,
)
""",
    right="""\
import subprocess

subprocess.run(
    "torchrun --nproc_per_node=4 train.py", shell=True, check=True
)
""",
    near_miss='''\
"""Start it with torchrun (or python -m torch.distributed.run) train.py."""

import torch.distributed as dist

dist.init_process_group("gloo")
dist.destroy_process_group()
''',
    find=_find,
    fixes=True,
)
