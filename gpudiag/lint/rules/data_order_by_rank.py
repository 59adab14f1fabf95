"""Data that each rank orders, or splits, by a seed of its own, before the ranks share it out."""

import ast
from collections.abc import Iterator

from gpudiag.lint.origins import behind, origins
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import runs_beside, shuffles
from gpudiag.lint.values import RANKS
from gpudiag.lint.vocabulary import CLOCKS, SAMPLER

_BY_RANK = RANKS | {"rank_text", "local_rank_text"}
_LIBRARIES = ("torch", "numpy", "random")
_DRAWS = ("numpy.random.permutation", "torch.randperm")  # the rest change what they are given
_SPLITS = ("torch.utils.data.random_split", "random.shuffle", "numpy.random.shuffle", *_DRAWS)
_OWN_NUMBERS = CLOCKS | {"os.getpid", "os.urandom"}
_ADVICE = "draw it by a generator of one seed on all ranks, such as torch.Generator().manual_seed(0)"


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner:
        return
    for step in program.calls(SAMPLER):
        call, seed = step.node, argument(step.node, 4, "seed")
        if isinstance(call, ast.Call) and shuffles(call) and _is_by_rank(program, seed):
            message = "each rank shuffles by a seed of its own: samples are read twice, and others never"
            yield Mistake(call, message, "", advice="give the samplers of all ranks one seed")
            return
    seeded = dict.fromkeys(_LIBRARIES, "" if program.mentions(r"\w*seed\w*") else "by no seed")
    passed, opened = program.values.spawned, {f for other in program.opens_group for f in other.where.stack}
    for step in program.steps:
        call, stack = step.node, step.where.stack
        aside = any("seed" in getattr(f, "name", "") or (f in passed and f not in opened) for f in stack)
        if not isinstance(call, ast.Call) or aside:
            continue  # what it does follows from its arguments, or belongs to a worker
        name = program.names.qualify(call.func) or ""
        library = name.split(".")[0]
        if "seed" in ast.unparse(call.func).lower():
            computed = [part for part in call.args if not program.values.kinds(part) & _BY_RANK]
            differs = is_constant(keyword(call, "device_specific"), True)
            differs |= any(_is_by_rank(program, part) for part in computed) or _seeds_by_rank(program, call)
            differs |= any(
                isinstance(part, ast.Call) and program.names.qualify(part.func) in _OWN_NUMBERS
                for part in origins(program, *call.args)
            )
            what = "by a seed of its own" if differs else ""
            seeded |= dict.fromkeys([library] if library in _LIBRARIES else _LIBRARIES, what)
        elif name in _SPLITS and seeded[library] and _is_shared(program, step):
            what = "splits the data set" if "split" in ast.unparse(call.func) else "orders the data"
            message = f"each rank {what} {seeded[library]}, and the ranks then share out different data"
            yield Mistake(call, message, "", advice=_ADVICE)
            return


def _seeds_by_rank(program: Program, call: ast.Call) -> bool:
    """Whether a function of the script adds the rank to the seed that it is given."""
    function = program.values.function_called(call.func)
    return any(
        isinstance(inner, ast.Call)
        and "seed" in ast.unparse(inner.func).lower()
        and any(
            binding.added and _is_by_rank(program, binding.value)
            for part in inner.args
            if isinstance(part, ast.Name)
            for binding in program.values.reaching(part)
        )
        for inner in (ast.walk(function) if function is not None else ())
    )


def _is_by_rank(program: Program, node: ast.AST | None, depth: int = 5) -> bool:
    """Whether a number is computed from a rank: `seed + rank`, also through names and arguments."""
    if node is None or depth < 0:
        return False
    if isinstance(node, ast.BinOp):
        return any(_is_by_rank(program, side, depth - 1) for side in (node.left, node.right))
    made = program.values.reaching(node) if isinstance(node, ast.Name | ast.Attribute) else []
    given = [value for b in made for value in ([b.value] if b.value else program.values.given_for(b))]
    return bool(program.values.kinds(node) & _BY_RANK) or any(
        _is_by_rank(program, v, depth - 1) for v in given
    )


def _is_shared(program: Program, step: Step) -> bool:
    """Whether the ranks take parts of what is drawn: by a sampler, Accelerate, or a slice by rank."""
    call = step.node
    is_in_a_rank = program.uses_accelerate or runs_beside(program, step, program.opens_group)
    if not isinstance(call, ast.Call) or not is_in_a_rank:
        return False
    if keyword(call, "generator") or program.which_ranks(step) is not None:
        return False
    if "split" in ast.unparse(call.func):
        return bool(program.calls(SAMPLER)) or program.uses_accelerate
    statement = program.names.statement_of(call)
    drawn = statement.targets[0] if isinstance(statement, ast.Assign) else None
    ordered = drawn if program.names.qualify(call.func) in _DRAWS else argument(call, 0, "x")
    if ordered is not None and _is_sampled(program, call, ordered):
        return True
    return ordered is not None and any(
        isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == ast.unparse(ordered)
        and program.names.function_around(node) is program.names.function_around(call)
        and program.names.order[node] > program.names.order[call]
        and program.values.depends_on(node.slice, _BY_RANK)
        for node in program.nodes
    )


def _is_sampled(program: Program, call: ast.Call, ordered: ast.expr) -> bool:
    """Whether a DistributedSampler shares out what is ordered: a list, or the data of a class."""
    order, home = program.names.order, program.names.class_around(call)
    maker = program.names.function_around(call)
    for step in program.calls(SAMPLER):
        data = argument(step.node, 0, "dataset")
        if data is None:
            continue
        if home is not None and any(value.node is home for value in program.values.of(data)):
            return getattr(maker, "name", "") == "__init__" and _is_kept(maker, ordered)
        if home is None and any(
            isinstance(part, ast.Name)
            and ast.unparse(part) == ast.unparse(ordered)
            and program.names.function_around(part) is maker
            and order[part] > order[call]
            for part in behind(program, data)
        ):
            return True
    return False


def _is_kept(maker: ast.AST | None, ordered: ast.expr) -> bool:
    """Whether a function keeps a list in its object: `self.rows = rows`."""
    text = ast.unparse(ordered)
    return text.startswith("self.") or any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]).startswith("self.")
        and any(ast.unparse(part) == text for part in ast.walk(node.value))
        for node in (ast.walk(maker) if maker is not None else ())
    )


RULE = Rule(
    title="each rank orders or splits the data by a seed of its own",
    why=(
        "A DistributedSampler, or a slice by rank, takes every world_size-th item of one order. With other "
        "orders, ranks read the same samples and miss others; after a split, each tests on what another "
        "has trained on. A seed per rank is for augmentations: set it afterwards."
    ),
    find=_find,
)
