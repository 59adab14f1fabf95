"""Fixes that are certain, shown and written; and comments that silence a rule."""

import os
import stat

import pytest

from gpudiag.errors import GpudiagError
from gpudiag.lint.fix import plan_fixes, write_fixes
from gpudiag.lint.linter import lint_files, lint_text
from gpudiag.lint.rules import RULES
from tests.walking import walk

WRONG = """\
# -*- coding: latin-1 -*-
from __future__ import annotations
import argparse  # \xe4
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParalled
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
dist.init_process_group("nccl")
data = list(range(9))
loader = DataLoader(data, shuffle=True, sampler=DistributedSampler(data))  # \xfc
dist.destroy_process_group()
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_certain_fixes_keep_encoding_line_ends_and_mode(tmp_path, newline: str) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(WRONG.replace("\n", newline).encode("latin-1"))
    path.chmod(0o751)
    report = lint_files([path])
    assert {f.code for f in report.findings} == {
        "lint.wrapper_misspelt",
        "lint.local_rank_from_argv",
        "lint.shuffle_with_sampler",
    }
    [fixed] = plan_fixes(report)
    assert path.read_bytes() == WRONG.replace("\n", newline).encode("latin-1"), "planning writes nothing"
    write_fixes([fixed])
    after = path.read_bytes().decode("latin-1")
    assert after.count(newline) == WRONG.count("\n") + 1
    assert "\r" not in after.replace(newline, "")
    assert 'default=int(os.environ.get("LOCAL_RANK", -1))' in after
    assert after.split(newline)[2] == "import os"
    assert "shuffle=False" in after
    assert "import DistributedDataParallel" in after
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert lint_files([path]).findings == ()
    assert os.listdir(tmp_path) == ["train.py"]


def test_the_diff_names_what_changes_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        next(rule for rule in RULES if rule.code == "lint.shuffle_with_sampler").read_examples().wrong
    )
    [fixed] = plan_fixes(lint_files([path]))
    changed = [
        line for line in fixed.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert len(changed) == 2
    assert "shuffle=False" in changed[1]


def test_a_page_is_fixed_in_its_fences(tmp_path) -> None:
    path = tmp_path / "a.md"
    path.write_text(
        "- run\n\n  ```bash\n  python -m torch.distributed.launch --nproc_per_node=2 a.py\n  ```\n"
        "\n  ```python\n  from torch.nn.parallel import DistributedDataParalel\n  ```\n"
    )
    write_fixes(plan_fixes(lint_files([path])))
    assert path.read_text() == (
        "- run\n\n  ```bash\n  torchrun --nproc_per_node=2 a.py\n  ```\n"
        "\n  ```python\n  from torch.nn.parallel import DistributedDataParallel\n  ```\n"
    )


@walk([rule for rule in RULES if rule.fixes], lambda rule: rule.code)
def test_a_rule_that_fixes_leaves_a_script_that_parses_and_is_clean(rule) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.py")
        path.write_text(rule.read_examples().wrong)
        fixed = plan_fixes(lint_files([path]))
        if rule.code in ("lint.deepspeed_config", "lint.launch_module"):
            return  # the example's own mistake is one that a person must fix
        write_fixes(fixed)
        assert fixed
        assert rule.code not in {f.code for f in lint_files([path]).findings}


def test_a_file_that_has_changed_is_left_alone(tmp_path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(WRONG.encode("latin-1"))
    report = lint_files([path])
    path.write_text("x = 1\n")
    assert plan_fixes(report) == []


def test_a_file_that_cannot_be_written_is_left_whole(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(WRONG.encode("latin-1"))
    [fixed] = plan_fixes(lint_files([path]))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(GpudiagError, match="No space left"):
        write_fixes([fixed])
    assert path.read_bytes() == WRONG.encode("latin-1")
    assert os.listdir(tmp_path) == ["a.py"]


# Silence.
# -----------------------------------------------------------------------------------------------------------

BARRIER = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier(){}\n"


@pytest.mark.parametrize(
    ("text", "silent"),
    [
        (BARRIER.format("  # gpudiag: ignore[lint.collective_on_one_rank]"), True),
        (BARRIER.format("  # gpudiag: ignore[collective_on_one_rank]"), True),
        (
            BARRIER.format(
                "  # noqa  # gpudiag:ignore[ lint.save_on_every_rank , lint.collective_on_one_rank ]"
            ),
            True,
        ),
        (BARRIER.format("  # gpudiag: ignore"), True),
        (BARRIER.format("  # gpudiag: ignore[lint.save_on_every_rank]"), False),
        (
            BARRIER.format("").replace(
                "    dist", "    # gpudiag: ignore[lint.collective_on_one_rank]\n    dist"
            ),
            True,
        ),
        (
            "#!/usr/bin/env python\n# gpudiag: ignore[lint.collective_on_one_rank]\n" + BARRIER.format(""),
            True,
        ),
        (BARRIER.format("") + "# gpudiag: ignore-file[lint.collective_on_one_rank]\n", True),
        (BARRIER.format("") + "# gpudiag: ignore[lint.collective_on_one_rank]\n", False),
        ("import os  # gpudiag: ignore[lint.collective_on_one_rank]\n" + BARRIER.format(""), False),
    ],
)
def test_a_comment_silences_its_line_or_its_file(text: str, silent: bool) -> None:
    linted = lint_text(text)
    assert (linted.findings == ()) is silent
    assert linted.file.ignored == silent


def test_an_unknown_code_is_reported() -> None:
    linted = lint_text(BARRIER.format("  # gpudiag: ignore[lint.colective]"))
    assert "lint.colective, which is no rule" in (linted.file.remark or "")


def test_a_page_and_a_notebook_can_be_silent_too() -> None:
    page = "```python\n" + BARRIER.format("  # gpudiag: ignore[lint.collective_on_one_rank]") + "```\n"
    assert lint_text(page, suffix=".md").findings == ()
    whole = (
        "<!-- gpudiag: ignore-file[lint.collective_on_one_rank] -->\n```python\n"
        + BARRIER.format("")
        + "```\n"
    )
    assert lint_text(whole, suffix=".md").findings == ()
    import json

    lines = BARRIER.format("  # gpudiag: ignore[lint.collective_on_one_rank]").splitlines(keepends=True)
    notebook = json.dumps({"cells": [{"cell_type": "code", "source": lines}]}, indent=1)
    assert lint_text(notebook, suffix=".ipynb").findings == ()
