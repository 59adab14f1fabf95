"""Files as people have them: notebooks, pages, encodings, line ends, syntax of other Pythons, and what is no
text.
"""

import json
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.lint.linter import lint_file, lint_source, lint_text
from gpudiag.lint.newer_python import older_syntax
from gpudiag.lint.notebook import read_cells
from gpudiag.lint.page import read_fences
from gpudiag.lint.reader import MAX_BYTES, Unreadable, parse_source

WRONG = (
    "import torch.distributed as dist\n\ndist.init_process_group('gloo')\nif dist.get_rank() == 0:\n"
    "    dist.barrier()\ndist.destroy_process_group()\n"
)
FOUND = [(5, "lint.collective_on_one_rank")]


def found(content: bytes, suffix: str = ".py") -> list[tuple[int, str]]:
    return [(f.line, f.code) for f in lint_source(parse_source(content, "x", suffix)).findings]


def notebook(*cells: object) -> dict[str, object]:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def code_cell(*lines: str) -> dict[str, object]:
    source = [f"{line}\n" for line in lines]
    return {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source}


@pytest.mark.parametrize(
    "content",
    [
        WRONG.encode(),
        WRONG.encode("utf-8-sig"),
        WRONG.encode("utf-16"),
        WRONG.replace("\n", "\r\n").encode(),
        WRONG.replace("\n", "\r").encode(),
        WRONG.replace("    ", "\t").encode(),
        (WRONG + "# grüße\n").encode("latin-1"),
        (WRONG + "# привет\n").encode(),
    ],
    ids=["plain", "mark", "utf16", "crlf", "cr", "tabs", "latin", "cyrillic"],
)
def test_encodings_and_line_ends_change_no_line_number(content: bytes) -> None:
    assert found(content) == FOUND


def test_a_declared_encoding_is_obeyed() -> None:
    assert found(b"# -*- coding: koi8-r -*-\n" + WRONG.encode() + "# привет\n".encode("koi8-r")) == [
        (6, FOUND[0][1])
    ]


@pytest.mark.parametrize(
    "line",
    [
        'print(f"{d["key"]}")',
        "print(f'{'nested'} and {x!r:>{width}}')",
        "type Alias[T] = list[T]",
        "def first[T: int](items: list[T]) -> T: ...",
        "class Box[T](list[T]): ...",
        'print(f"{x:{"a" if y else "b"}}")',
        "x = f'''{\n1  # a comment\n}'''",
    ],
)
def test_syntax_of_newer_pythons_is_read(line: str) -> None:
    text = f"d, x, y, width = {{}}, 1, 2, 3\n{line}\n{WRONG}"
    assert [code for _, code in found(text.encode())] == ["lint.collective_on_one_rank"]
    shift = line.count("\n") + 2
    assert found(text.encode())[0][0] == 5 + shift


def test_what_the_running_python_reads_is_not_changed() -> None:
    text = 'x = f"{a}" + \'{b["c"]}\'\n# f"{"\nprint(type, x[1])\n'
    assert older_syntax(text) == text


def test_python_2_is_reported_as_such() -> None:
    [finding] = lint_text("import torch\nprint 'x'\n").findings
    assert finding.code == "lint.syntax_error"
    assert "Python 2" in finding.message


def test_a_syntax_error_is_one_finding_on_its_line() -> None:
    [finding] = lint_text("import torch.distributed\nx = (\ny = 1\ndef\n").findings
    assert (finding.code, finding.line) == ("lint.syntax_error", 2)


# Notebooks.
# ---------------------------------------------------------------------------------------------------------


def test_a_line_of_a_cell_has_the_number_of_the_line_of_the_file() -> None:
    cells = notebook(
        code_cell("%matplotlib inline", "!nvidia-smi", "x = !ls", "torch?"), code_cell(*WRONG.splitlines())
    )
    text = json.dumps(cells, indent=1)
    [finding] = lint_text(text, suffix=".ipynb").findings
    assert "dist.barrier()" in text.splitlines()[finding.line - 1]
    assert finding.cell == 2


@pytest.mark.parametrize(
    "lines",
    [
        ("!python train.py --epochs 3 \\", "    --batch 32 \\", "    > log 2>&1  # all of it"),
        ("!export BS=16; \\", "CUDA_VISIBLE_DEVICES=0 deepspeed --num_gpus=1 train.py"),
        ("files = !ls \\", "  -l"),
        ("%env NCCL_DEBUG=INFO", "%run train.py \\", "    --epochs 3"),
        ("pip install torch \\", "    torchvision"),
        ("import os", "cd ..", "ls -l", "conda install -y pytorch", "matplotlib inline"),
        ("time = 3", "run = time - 1", "run in [time]", "time"),
        ("print(", '    "epoch %d"', "    % 3", ")"),
        ("same = (", "    1", "    != 2", ")"),
        ("text = 'epoch %d' \\", "    % 3"),
        ('text = """', "!not a command \\", "% nor this", '"""'),
    ],
    ids=lambda lines: lines[0],
)
def test_a_command_ends_where_ipython_ends_it_and_python_goes_on_where_python_does(
    lines: tuple[str, ...],
) -> None:
    cells = notebook(code_cell(*lines), code_cell(*WRONG.splitlines()))
    codes = [f.code for f in lint_text(json.dumps(cells, indent=1), suffix=".ipynb").findings]
    assert codes == ["lint.collective_on_one_rank"]


def test_the_old_launcher_is_found_on_the_second_line_of_a_command() -> None:
    cells = notebook(code_cell("!NCCL_DEBUG=INFO \\", "  python -m torch.distributed.launch train.py"))
    text = json.dumps(cells, indent=1)
    [finding] = lint_text(text, suffix=".ipynb").findings
    assert finding.code == "lint.launch_module"
    assert "distributed.launch" in text.splitlines()[finding.line - 1]


JOB = b"""#!/bin/bash
#SBATCH --nodes=2
# python -m torch.distributed.launch old.py
export OMP_NUM_THREADS=4
srun python -m torch.distributed.launch --nproc_per_node=4 train.py \\
    --epochs 3
"""


def test_only_a_package_is_empty_without_a_word() -> None:
    assert lint_text("\n", "pkg/__init__.py").file.remark is None
    assert lint_text("", "pkg/train.py").file.remark == "it is empty"


@pytest.mark.parametrize("suffix", [".sh", ".sbatch", ".slurm", ""])
def test_a_shell_script_is_no_broken_python(suffix: str) -> None:
    assert found(JOB, suffix) == [(5, "lint.launch_module")]
    assert found(JOB.replace(b"python -m torch.distributed.launch", b"torchrun"), suffix) == []
    silent = JOB.replace(b"export OMP_NUM_THREADS=4", b"# gpudiag: ignore[launch_module]")
    assert found(silent, suffix) == []


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml", ".rst", ".cu"])
def test_what_is_no_python_by_its_suffix_is_not_judged(suffix: str) -> None:
    with pytest.raises(Unreadable, match="no Python"):
        parse_source(b"train_batch_size: 4\nranks:\n  - 1\n", "x", suffix)


def test_a_cell_that_does_not_parse_costs_only_itself() -> None:
    cells = notebook(code_cell("def broken("), code_cell(*WRONG.splitlines()))
    codes = [f.code for f in lint_text(json.dumps(cells, indent=1), suffix=".ipynb").findings]
    assert codes == ["lint.syntax_error", "lint.collective_on_one_rank"]


def test_a_notebook_that_is_cut_off_is_read_as_far_as_it_goes() -> None:
    text = json.dumps(notebook(code_cell(*WRONG.splitlines()), code_cell("x = 1")), indent=1)
    linted = lint_text(text[: text.rindex("x = 1")], suffix=".ipynb")
    assert [f.code for f in linted.findings] == ["lint.collective_on_one_rank"]
    assert "cut off" in (linted.file.remark or "")


def test_a_written_file_is_a_script_of_its_own_and_shell_cells_are_none() -> None:
    cells = notebook(
        code_cell("%%writefile train.py", *WRONG.splitlines()),
        code_cell("%%bash", "python -m torch.distributed.launch --nproc_per_node=2 train.py"),
        code_cell("%%html", "<b>no Python</b>"),
    )
    codes = [f.code for f in lint_text(json.dumps(cells), suffix=".ipynb").findings]
    assert sorted(codes) == ["lint.collective_on_one_rank", "lint.launch_module"]


def test_a_source_that_is_one_string_is_read() -> None:
    cell = {"cell_type": "code", "source": WRONG}
    assert [code for _, code in found(json.dumps(notebook(cell)).encode(), ".ipynb")] == [
        "lint.collective_on_one_rank"
    ]


# Pages.
# -------------------------------------------------------------------------------------------------------------


def test_fences_are_found_as_renderers_find_them() -> None:
    page = (
        "```python\na\n```\n\n- x\n\n  ~~~{.py .numberLines}\n  b\n  ~~~\n\n> ```{python}\n> c\n> ```\n\n"
        "```python one_line()```\n\n````md\n```python\nd\n```\n````\n\n```text\n"
    )
    assert [(f.word, f.first, f.end) for f in read_fences(page.splitlines())] == [
        ("python", 1, 2),
        ("py", 7, 8),
        ("python", 11, 12),
        ("md", 17, 20),
        ("text", 23, 23),
    ]


def test_a_sketch_in_a_page_is_no_syntax_error() -> None:
    page = f"```python\nmodel = ...\nfor batch in\n```\n\n```python\n{WRONG}```\n"
    assert found(page.encode(), ".md") == [(11, "lint.collective_on_one_rank")]


def test_a_command_that_is_shown_is_a_note() -> None:
    page = (
        "# Run\n\n    $ x\n\n```bash\n"
        "$ python -m torch.distributed.launch --use_env --nproc_per_node=2 a.py\n```\n"
    )
    [finding] = lint_text(page, suffix=".md").findings
    assert (finding.code, finding.severity.value, finding.line) == ("lint.launch_module", "note", 6)
    assert finding.fix == "$ torchrun --nproc_per_node=2 a.py"


# What is no script.
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("binary.py", b"\x7fELF\0\0\1\2", "binary"),
        ("noise.py", bytes(range(128, 256)) * 40 + bytes(range(32)) * 40, "binary"),
        ("empty.py", b"", "empty"),
        ("blank.py", b"\n \n", "empty"),
        ("large.py", b"#" * (MAX_BYTES + 1), "larger"),
        ("no.ipynb", b"[1, 2]", "no notebook"),
        ("no.ipynb", b"{}", "no notebook"),
        ("no.ipynb", b"not json", "no notebook"),
        ("half.py", b"\xff\xfe\x00", "not"),
        ("latin.py", b"x = 1 # \xe4\n", "line 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path, name: str, content: bytes, word: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    linted = lint_file(path)
    assert word in (linted.file.remark or "")
    assert linted.findings == ()


@pytest.mark.sliced
@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "[" * 90 + "]" * 90,
        "-" * 20_000 + "1",
        "x" + ".a" * 20_000,
        "1" + "+1" * 20_000,
        "if x:\n" * 3,
        "x = 1\n" * 150_000,
    ],
    ids=["brackets", "lists", "minus", "attributes", "sums", "ifs", "a megabyte"],
)
def test_what_is_nested_deeply_or_long_is_no_crash(text: str) -> None:
    body = f"import torch.distributed as dist\n{text}\n"
    linted = lint_text(body)
    assert len(linted.findings) <= 1
    nested = "".join(f"{' ' * depth}if x:\n" for depth in range(90)) + f"{' ' * 90}dist.barrier()\n"
    lint_text("import torch.distributed as dist\n" + nested)


def test_a_folder_and_a_file_that_is_gone_are_reported(tmp_path) -> None:
    assert "cannot be opened" in (lint_file(tmp_path / "gone.py").file.remark or "")
    assert "cannot be opened" in (lint_file(tmp_path).file.remark or "")


PIECES = st.sampled_from(
    [
        *("import torch.distributed as dist\n", "dist.barrier()\n", "if rank == 0:\n", "    ", "\t"),
        *("f'{", "}'", "'''", '"', "{", "}", "(", ")", "```python\n", "~~~\n", "#", "\\", "\r", "\0"),
        *("%%bash\n", "!ls\n", "for x in y:\n", "def f(x):\n", "return f(x)\n", "x = x\n"),
        *("lambda: x\n", "type X[T] = 1\n", "class A(A):\n", "self.x = self.x\n", "é", "\u2028", "\x0c"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join), st.sampled_from([".py", ".md", ".ipynb"]))
def test_no_text_brings_the_reader_down(text: str, suffix: str) -> None:
    for finding in lint_text(text, suffix=suffix).findings:
        assert 1 <= finding.line <= text.count("\n") + text.count("\r") + 1


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([".py", ".md", ".ipynb"]))
def test_no_bytes_bring_the_reader_down(content: bytes, suffix: str) -> None:
    with suppress(Unreadable):
        assert lint_source(parse_source(content, "x", suffix)).file.path == "x"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["cells", "source", "cell_type", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(JSON, st.integers(0, 200))
def test_no_json_brings_the_reader_of_notebooks_down(value: object, cut: int) -> None:
    text = json.dumps(value)
    for document in (text, text[:cut]):
        cells, remark = read_cells(document)
        assert cells is not None or remark


def test_the_limit_of_recursion_is_left_alone() -> None:
    before = sys.getrecursionlimit()
    lint_text("import torch.distributed\n" + "(" * 5000)
    assert sys.getrecursionlimit() == before


def test_two_versions_of_a_function_in_a_page_are_two_programs() -> None:
    """A tutorial shows the loop for one GPU first, and then the same function with DDP."""
    page = """
```python
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
```

```python
def train(data):
    loader = DataLoader(TensorDataset(data), batch_size=8)
    model = torch.nn.Linear(4, 4)
    for (batch,) in loader:
        model(batch).sum().backward()
```

```python
def train(data):
    dist.init_process_group("gloo")
    data = TensorDataset(data)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for (batch,) in loader:
        model(batch).sum().backward()
    dist.destroy_process_group()
```
"""
    assert found(page.encode(), ".md") == []


def test_names_that_stand_for_one_another_many_times_end_soon() -> None:
    """Each of these names may be any of the others: what they hold is not followed to the end."""
    names = [f"n{number}" for number in range(40)]
    lines = [f"    if c{number}:\n        {name} = {' or '.join(names)}" for number, name in enumerate(names)]
    body = "\n".join(lines)
    text = (
        "import torch.distributed as dist\n\ndef f():\n    while True:\n"
        f"{body.replace('    ', '        ')}\n        dist.broadcast(n3, src=n4)\n"
    )
    assert lint_text(text).findings == ()
