"""A running total that keeps the graph of every step."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import without_gradients
from gpudiag.model.lint import Severity


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or not (
        program.opens_group
        or program.ddp_steps
        or program.uses_horovod
        or program.uses_accelerate
        or program.uses_deepspeed
    ):
        return
    told = set()
    for step in program.steps:
        node = step.node
        if (
            not isinstance(node, ast.AugAssign)
            or not isinstance(node.op, ast.Add)
            or node in told
            or not step.where.loops
        ):
            continue
        if not isinstance(node.target, ast.Name | ast.Attribute) or without_gradients(program, step):
            continue
        added = node.value
        if (
            not isinstance(added, ast.Name)
            or not _is_of_the_backward(program, step, added)
            or _is_used_whole(program, node.target)
        ):
            continue
        if _starts_in_the_loop(program, step, node.target):
            continue
        told.add(node)
        edits = program.edit(added, f"{added.id}.detach()")
        yield Mistake(node, f"{ast.unparse(node.target)} keeps the graph of every step, and memory grows", f"{ast.unparse(node.target)} += {added.id}.detach()", edits)  # fmt: skip


def _is_of_the_backward(program: Program, step: Step, added: ast.Name) -> bool:
    """Whether what is added is the tensor from which the gradients of this round are computed, and still is it."""
    for backward in program.backwards:
        call = backward.node
        if (
            backward.where.loops != step.where.loops
            or not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
        ):
            continue
        losses = [call.func.value, *call.args[:1]]
        for loss in losses:
            if isinstance(loss, ast.Name) and loss.id == added.id:
                theirs = {b.node for b in program.values.reaching(loss)}
                ours = program.values.reaching(added)
                texts = " ".join(ast.unparse(b.value) for b in ours if b.value is not None)
                if {b.node for b in ours} == theirs and not any(
                    w in texts for w in (".item(", "detach", ".data", "float(", "reduce")
                ):
                    return True
    return False


def _is_used_whole(program: Program, target: ast.expr) -> bool:
    """Whether gradients are computed from the total itself."""
    text = ast.unparse(target)
    for backward in program.backwards:
        call = backward.node
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and text in " ".join(ast.unparse(p) for p in (call.func.value, *call.args))
        ):
            return True
    return any(isinstance(n, ast.Assign) and text in ast.unparse(n.value) and any(ast.unparse(t) == "loss" for t in n.targets) for n in program.nodes)  # fmt: skip


def _starts_in_the_loop(program: Program, step: Step, target: ast.expr) -> bool:
    """Whether the total begins anew in each round, or is detached there."""
    loop = step.where.loops[-1]
    text = ast.unparse(target)
    return any(
        isinstance(node, ast.Assign)
        and any(ast.unparse(t) == text for t in node.targets)
        and _always(program, node, loop)
        for statement in loop.body
        for node in ast.walk(statement)
    )


def _always(program: Program, node: ast.AST, loop: ast.AST) -> bool:
    return program.names.parents.get(node) is loop or "detach" in ast.unparse(node)


RULE = Rule(
    code="lint.loss_keeps_graph",
    severity=Severity.FINDING,
    title="a running total of the loss keeps every step's graph",
    why="The loss is a tensor that remembers how it came about. A sum of such tensors holds on to all of their graphs, and memory grows with every step until it runs out.",
    wrong="""\
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total += loss
    return total
""",
    right="""\
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total
""",
    near_miss="""\
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    total = 0
    for batch in batches:
        part = model(batch).sum()
        total += part
    total.backward()
""",
    find=_find,
    fixes=True,
)
