"""Writes docs/lint.md: every rule with its examples, a copy that a test compares."""

from pathlib import Path

from gpudiag.lint.rule import Rule
from gpudiag.lint.rules import RULES
from gpudiag.model.lint import Severity

PAGE = Path(__file__).parents[1] / "docs" / "lint.md"

_HEAD = """# gpudiag lint

    gpudiag lint train.py                   the mistakes of distributed training in a script, \
which is never run
    gpudiag lint scripts/ a.ipynb b.md      folders, notebooks, and the fences of pages
    gpudiag lint --diff train.py            what --fix would change
    gpudiag lint --fix train.py             shows that diff, then writes it; only certain fixes
    gpudiag lint --format sarif src/        SARIF 2.1.0; also json (gpudiag.lint/2) and github (annotations)
    gpudiag explain lint.set_epoch_missing  a rule, with a wrong and a right script

Exit status: 0 without findings (notes are allowed), 1 for a finding, 2 for a file that does not exist or
folders without a script, 3 if a file or folder could not be read and there is no finding in the others.

## How it decides

- It follows names through imports and aliases, values through assignments, arguments and `self`, and
  conditions through calls: a function that is only called under `if rank == 0` is rank 0's. It does not
  guess what it cannot follow.
- It knows who owns the loop. Lightning, Hugging Face's Trainer, Ray, Composer and similar frameworks wrap,
  shard and save by themselves; Accelerate's `prepare`, DeepSpeed's engine and Horovod's optimizer do their
  part.
- A missing call counts only if the whole file lacks it: `set_epoch` in another function, or in another
  cell, is enough.
- Where a script can only run on one machine (`localhost`, `world_size=torch.cuda.device_count()`), its
  ranks may be numbers of GPUs.
- Of the environment variables that a script sets, a name one letter away from one of NCCL's or of a launch
  is a finding.
- A **finding** is certainly wrong when the script runs on several ranks. A **note** may be intended, and
  never fails.
- In a page, a fence that imports a framework begins a script, and the fences after it continue it. There, a
  sketch that does not parse is no mistake. In a notebook, a cell that does not parse is left out alone;
  `%%writefile x.py` is a separate script.
- A launcher's command in a page is a note; one that a notebook or a script runs is a finding. Of a shell
  script, Slurm's too, the launcher's commands are read, with `#SBATCH` lines and variables: where the
  machines meet, and whether ranks, tasks and GPUs fit. A folder's shell scripts are read with it. A YAML or
  JSON file is not read, and gpudiag reports that.
- `better:` is Python: it replaces the statement, or goes in front of the line that it names. Where no one
  statement corrects the mistake, `do:` describes the change in words.
- `rank < 2`, `rank < cfg.stages`, `rank < cfg["stages"]`, `rank in members` and `rank % 2 == 0` hold for
  some ranks, unless the script compares that number with the world size for equality: a collective without a
  group, a new group or a mesh under such a condition is a finding.
- `if dist.is_initialized()`, `if args.distributed` and `if world_size > 1` are true on all ranks of a job,
  and a rank that is 0 or -1 where there is no job is a rank. In a function under `@rank_zero_only` or the
  like, no call is taken to run on all ranks.
- A loader that Accelerate has prepared is split; one that it has not is read whole by every process. What its
  configuration decides, such as whether `save_state` on one rank hangs, is a note.
- A folder that every rank makes, after it has looked whether it is there, is a note: it fails only where two
  ranks look at the same moment. Shares cut by hand (`files[rank::world_size]`) in a loop with a collective
  are a note too: they differ only where the number of items is no multiple of the world size. A cut to such a
  multiple, or a remainder that the script tests, settles it.
- A file or folder counts as used too early, and a loop as left by a rank's own figure, only where nothing in
  between can wait or agree: a call of another file may do both.
- Syntax of newer Pythons than the one that runs gpudiag is read if no rule depends on it; Python 2 is
  reported as such.
- Folders: hidden ones, `venv`, `build`, `site-packages` and `node_modules` are left out.

## Silence

`# gpudiag: ignore[lint.CODE]` at the end of a line silences a code there, alone on a line for the next one,
and alone before the first statement for the whole file (`ignore-file[..]` does so anywhere). Separate
several codes by commas; without a code all are silenced. Markdown takes it as
`<!-- gpudiag: ignore[..] -->`.

## pre-commit and CI

```yaml
repos:
  - repo: https://github.com/OWNER/gpudiag
    rev: v0.1.0
    hooks:
      - id: gpudiag-lint
```

`gpudiag lint --format github src/` prints annotations beside the lines of a pull request.

## Rules

Written by `python -m tools.write_lint_page` from `gpudiag/lint/rules`; the examples are their tests.

| code | | |
| --- | --- | --- |
"""


def page_text() -> str:
    """The whole page."""
    rows = "".join(
        f"| [`{rule.code}`](#{_anchor(rule.code)}) | {rule.severity.value} | {rule.title} |\n"
        for rule in RULES
    )
    return _HEAD + rows + "".join(_entry(rule) for rule in RULES)


def _anchor(code: str) -> str:
    return code.replace(".", "")


def _entry(rule: Rule) -> str:
    kind = "A finding" if rule.severity is Severity.FINDING else "A note"
    examples = rule.read_examples()
    fixes = "; `--fix` fixes it if the fix is certain" if rule.fixes else ""
    return (
        "\n"
        f"### `{rule.code}`\n"
        "\n"
        f"{kind}{fixes}: {rule.title}.\n"
        f"{rule.why}\n"
        "\n"
        "Wrong:\n"
        "\n"
        "```python\n"
        f"{examples.wrong}```\n"
        "\n"
        "Right:\n"
        "\n"
        "```python\n"
        f"{examples.right}```\n"
        "\n"
        "Right too, though it looks similar:\n"
        "\n"
        "```python\n"
        f"{examples.near_miss}```\n"
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text())


if __name__ == "__main__":
    main()
