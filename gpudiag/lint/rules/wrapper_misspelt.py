"""A class or function of torch.distributed, or a variable, by a name that it does not have."""

import ast
import difflib
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.reader import Line
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import TORCH_COLLECTIVES, VARIABLES
from gpudiag.model.lint import Edit, Severity

_CLASSES = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DistributedSampler")
_FUNCTIONS = (
    *sorted(TORCH_COLLECTIVES),
    *"""
    init_process_group destroy_process_group get_rank get_world_size is_initialized is_available
    is_nccl_available is_gloo_available is_mpi_available send recv isend irecv get_backend
    init_device_mesh batch_isend_irecv all_reduce_multigpu broadcast_multigpu reduce_multigpu
    all_gather_multigpu reduce_scatter_multigpu ReduceOp ProcessGroup P2POp Store TCPStore FileStore
    HashStore PrefixStore DeviceMesh Backend GradBucket reduce_op group GroupMember new_subgroups
    get_group_rank get_global_rank Reducer Logger is_torchelastic_launched get_process_group_ranks
    get_node_local_rank split_group launch nn rpc optim utils run elastic fsdp tensor checkpoint
    algorithms autograd pipelining constants rendezvous distributed_c10d device_mesh c10d_logger
    remote_device launcher argparse_util logging_handlers
    """.split(),
)
_PARALLEL = tuple(
    """
    DistributedDataParallel DataParallel DistributedDataParallelCPU parallel_apply replicate
    data_parallel scatter gather distributed comm scatter_gather
    """.split()
)
_MEMBERS = {
    "torch.nn.parallel": _PARALLEL,
    "torch.distributed": _FUNCTIONS,
    "torch.utils.data.distributed": ("DistributedSampler",),
}
# Names that are right, and stand in another module than people write.
_ELSEWHERE = {
    "torch.nn.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
    "torch.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.DDP": "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
    "torch.nn.parallel.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
}


def _find(program: Program) -> Iterator[Mistake]:
    yield from _find_imports(program)
    yield from _find_attributes(program)
    yield from _find_undefined(program)
    for node in program.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_set(program, node):
            right = _variable_meant(node.value)
            if (
                right is not None and program.code.count(node.value) == 1
            ):  # else the program may read it itself
                edits = program.edit(node, repr(right).replace("'", '"'))
                fix = program.edited_line(edits) if edits else with_replaced(program, node, repr(right))
                yield Mistake(node, f"no program reads {node.value}; the name is {right}", fix, edits)


def _is_set(program: Program, node: ast.Constant) -> bool:
    """Whether a text is the name of an environment variable that the script sets."""
    around = program.names.parents.get(node)
    if isinstance(around, ast.Subscript):
        return program.names.qualify(around.value) == "os.environ" and not isinstance(around.ctx, ast.Load)
    setters = ("os.environ.setdefault", "os.putenv")
    return isinstance(around, ast.Call) and program.names.qualify(around.func) in setters


def find_commands(lines: tuple[Line, ...], *, run: bool, editable: bool) -> Iterator[Mistake]:
    """The variables that lines of shell set under a name which no program reads."""
    for line in lines:
        for found in _ASSIGNED.finditer(line.text.split("#")[0]):
            right = _variable_meant(found[1])
            if right is not None and not any(
                re.search(rf"\$\{{?{found[1]}\b", other.text) for other in lines
            ):
                edits = (Edit(line.number, line.shift + found.start(1), line.shift + found.end(1), right),)
                yield Mistake(
                    ast.Pass(),
                    f"no program reads {found[1]}; the name is {right}",
                    line.text.replace(found[1], right).strip(),
                    edits if editable else (),
                    None if run else Severity.NOTE,
                    line,
                )


_ASSIGNED = re.compile(r"(?<![\w$-])((?:N[CL]|CUDA_|MASTER_|OMP_)\w+)=")


def _variable_meant(name: str) -> str | None:
    """The variable whose name differs by one typing error: a letter too many, too few, wrong, or swapped."""
    if name in VARIABLES:
        return None
    if name == "MASTER_ADDRESS":
        return "MASTER_ADDR"
    return next((right for right in VARIABLES if _differs_by_one(name, right)), None)


def _differs_by_one(name: str, right: str) -> bool:
    short, long = sorted((name, right), key=len)
    if len(short) < len(long):
        return any(long[:place] + long[place + 1 :] == short for place in range(len(long)))
    apart = [place for place, (one, other) in enumerate(zip(name, right, strict=False)) if one != other]
    return len(short) == len(long) and (
        len(apart) == 1 or (len(apart) == 2 and sorted(name) == sorted(right))
    )


def _find_imports(program: Program) -> Iterator[Mistake]:
    for node in program.nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                yield from _judge(program, node, node.module, name.name)


def _find_attributes(program: Program) -> Iterator[Mistake]:
    for node in program.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            module = program.names.qualify(node.value)
            if module is not None and not _is_tested(program, node):
                yield from _judge(program, node, module, node.attr)


def _is_tested(program: Program, node: ast.AST) -> bool:
    """Whether the script first checks that the name exists."""
    return any(isinstance(outer, ast.Try) for outer in program.names.ancestors(node)) or program.mentions(
        "hasattr"
    )


def _judge(program: Program, node: ast.AST, module: str, name: str) -> Iterator[Mistake]:
    right = _ELSEWHERE.get(f"{module}.{name}")
    if right is not None:
        yield from _mistake(program, node, f"{module}.{name}", f"{module} has no {name}", right)
        return
    known = _MEMBERS.get(module)
    if module in ("torch.nn", "torch.utils.data") and name[:1].isupper():
        known = _CLASSES
    if known is None or name in known or name.startswith("_"):
        return
    near = _nearest(name, known)
    if near is not None:
        yield from _mistake(program, node, name, f"{module} has no {name}; the name is {near}", near)


def _find_undefined(program: Program) -> Iterator[Mistake]:
    """A class's name that nothing imports: no import can have brought it."""
    for node in program.names.loaded:
        if node.id in program.names.bound or node.id in (*_CLASSES, "DDP", "FSDP", "DP"):
            continue
        near = _nearest(node.id, _CLASSES)
        if near is not None and len(node.id) > 8:
            yield from _mistake(program, node, node.id, f"torch has no {node.id}; the name is {near}", near)


# What builds of torch for other accelerators add: Ascend, Habana, Cambricon, Enflame.
_OF_A_VENDOR = re.compile(r"hccl|cncl|eccl|hpu|npu|mlu", re.IGNORECASE)


def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The name that was meant: one that differs by a typing error, and not by a whole word."""
    if len(name) < 5 or _OF_A_VENDOR.search(name):
        return None
    for candidate in difflib.get_close_matches(name, known, n=1, cutoff=0.86):
        longer = len(name) - len(candidate)
        is_another = longer > 1 and candidate in name  # MMDistributedDataParallel, of another library
        if candidate != name and abs(longer) <= 3 and not is_another:
            return candidate
    bare = name.replace("_", "").lower()
    return next((c for c in known if c.replace("_", "").lower() == bare and c != name), None)


def _mistake(program: Program, node: ast.AST, wrong: str, message: str, right: str) -> Iterator[Mistake]:
    if isinstance(node, ast.ImportFrom):
        number = node.lineno
        text = program.line_at(number).text
        place = text.find(wrong.rsplit(".", 1)[-1])
        if "." in right or place < 0 or node.lineno != node.end_lineno:
            name = right.rsplit(".", 1)
            fix = (
                f"from {name[0]} import {name[1]}" if len(name) == 2 else f"from {node.module} import {right}"
            )
            yield Mistake(node, message, fix)
            return
        begin = len(text[:place].encode())
        edits = program.edit_span(number, begin, begin + len(wrong.encode()), right)
        yield Mistake(node, message, text.replace(wrong, right).strip(), edits)
        return
    if isinstance(node, ast.Attribute) and "." not in right and node.end_lineno == node.lineno:
        end = node.end_col_offset or 0
        edits = program.edit_span(node.lineno, end - len(node.attr.encode()), end, right)
    else:
        edits = (
            program.edit(node, right)
            if not isinstance(node, ast.Attribute) or program.names.qualify(ast.Name("torch"))
            else ()
        )
        if isinstance(node, ast.Attribute) and not program.imports("torch"):
            edits = ()
    shown = program.statement_text(node).replace(
        ast.unparse(node),
        right
        if not isinstance(node, ast.Attribute) or "." in right
        else f"{ast.unparse(node.value)}.{right}",
    )
    yield Mistake(node, message, program.edited_line(edits) if edits else shown, edits)


RULE = Rule(
    title="a name of torch.distributed, or an environment variable, is misspelt",
    why=(
        "Python finds no such name: the script ends with an ImportError, an AttributeError or a NameError, "
        "often only after the data has been loaded. A variable of another name is ignored without an error."
    ),
    find=_find,
    fixes=True,
    find_commands=find_commands,
)
