"""A training loader without a sampler: every rank reads all of the data."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, hides, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Loop
from gpudiag.lint.training import batch_sampler_of, loaders_of, sampler_of, training_loaders
from gpudiag.lint.values import RANKS

_BY_RANK = RANKS | {"rank_text", "local_rank_text", "world_size", "world_size_text"}
_SEEDERS = "torch.manual_seed torch.Generator random.seed numpy.random.seed torch.cuda.manual_seed".split()
_BY_HAND = (
    "split_dataset_by_node webdataset wds nvidia.dali shard StatefulDataLoader DistributedDataLoader".split()
)


# What a class that shares its data among the ranks, or draws it, has in its text.
_SHARES = re.compile(
    r"rank|world|shard|replica|process|node|dist|rand|shuffle|seed|sampl|split_|_split|partition|queue|global"
    r"|num_gpu|stream|super\(|stride|step|skip",
    re.IGNORECASE,
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_deepspeed or program.mentions(*_BY_HAND) or _seeds_by_rank(program):
        return
    if program.mentions("prepare_data_loader", "skip_first_batches", "device_specific"):
        return
    if not (_leaves_out_loaders(program) if program.uses_accelerate else _averages(program)):
        return
    reported: set[ast.AST] = set()
    for loader, loop, step in training_loaders(program):
        if (
            loader in reported
            or not _is_for_training(program, loader, loop)
            or hides(program, loader, "sampler", "batch_sampler")
            or sampler_of(loader)
            or batch_sampler_of(loader)
        ):
            continue
        data = argument(loader, 0, "dataset")
        if (
            data is None
            or not (_is_whole(program, data) or _is_built(program, loader, data))
            or program.which_ranks(step) is not None
        ):
            continue
        if program.values.depends_on(loader, _BY_RANK):
            continue
        reported.add(loader)
        if program.uses_accelerate:
            message = "the training loader is not prepared: every process reads all of the data"
            yield Mistake(loader, message, "", advice="give it to accelerator.prepare, with the model")
            continue
        if any(_is_iterable(program, value.node) for value in program.values.of(data)):
            message = "every rank reads all of the data: an IterableDataset is not split by itself"
            yield Mistake(loader, message, "", advice="take every world_size-th item, from the rank on")
            continue
        if any(_is_streamed(value.node) for value in program.values.of(data)):
            message = "every rank reads all of the data: a stream is not split by itself"
            advice = "give split_dataset_by_node(stream, rank=rank, world_size=world_size) to the loader"
            yield Mistake(loader, message, "", advice=advice)
            continue
        shown = ast.unparse(data)
        if program.uses_horovod:
            sampler = f"DistributedSampler({shown}, num_replicas=hvd.size(), rank=hvd.rank())"
        else:
            sampler = f"DistributedSampler({shown})"
        keywords = [k for k in loader.keywords if k.arg != "shuffle"]
        fixed = ast.Call(
            loader.func,
            loader.args[:2],
            [*keywords, ast.keyword("sampler", ast.parse(sampler, mode="eval").body)],
        )
        yield Mistake(
            loader,
            "the training loader has no DistributedSampler: every rank reads all of the data",
            with_replaced(program, loader, ast.unparse(fixed)),
        )


def _is_for_training(program: Program, loader: ast.Call, loop: Loop) -> bool:
    """Whether this loader trains, where one loop reads several: `for batch in loaders[phase]`."""
    several = sorted(loaders_of(program, loop), key=lambda call: program.names.order.get(call, 0))
    if any(sampler_of(other) or batch_sampler_of(other) for other in several):
        return False
    return loader is several[0]


def _averages(program: Program) -> bool:
    """Whether the ranks train one model: it is wrapped in DDP, or Horovod's optimizer averages."""
    in_torch = program.ddp_steps and (program.opens_group or not program.script.whole)
    return bool(in_torch) or program.averages_by_horovod


def _leaves_out_loaders(program: Program) -> bool:
    """Whether the script gives Accelerate its model by name, and a loader nowhere."""
    calls = [call for step in program.methods.get("prepare", []) if isinstance(call := step.node, ast.Call)]
    given = [part for call in calls for part in call.args]
    return bool(given) and not any(
        isinstance(part, ast.Starred) or "loader" in program.values.kinds(part) or "load" in ast.unparse(part)
        for part in given
    )


def _is_whole(program: Program, data: ast.expr) -> bool:
    """Whether the data set is known, and nothing of it depends on the rank."""
    values = program.values.of(data)
    if not values or any(value.kind not in ("dataset", "instance") for value in values):
        return False
    for value in values:
        if isinstance(value.node, ast.ClassDef) and _knows_ranks(program, value.node):
            return False
        if isinstance(value.node, ast.Call) and program.values.depends_on(value.node, _BY_RANK):
            return False
    return True


def _is_built(program: Program, loader: ast.Call, data: ast.expr) -> bool:
    """Whether the data set is an object of another file's class that is read by index: it can be shuffled."""
    made = (
        [b.value for b in program.values.reaching(data)]
        if isinstance(data, ast.Name | ast.Attribute)
        else [data]
    )
    return (
        is_constant(argument(loader, 2, "shuffle"), True)
        and all(
            isinstance(value, ast.Call)
            and (program.names.qualify(value.func) or "").rpartition(".")[2][:1].isupper()
            and not program.values.depends_on(value, _BY_RANK)
            for value in made
        )
        and bool(made)
    )


def _is_iterable(program: Program, owner: ast.AST | None) -> bool:
    """Whether a class is an IterableDataset itself, and of no other base that could split it."""
    bases = owner.bases if isinstance(owner, ast.ClassDef) else []
    return [program.names.qualify(base) for base in bases] == ["torch.utils.data.IterableDataset"]


def _is_streamed(made: ast.AST | None) -> bool:
    """Whether a data set of Hugging Face is a stream, for which there is no sampler."""
    return is_constant(keyword(made, "streaming"), True) if made is not None else False


def _knows_ranks(program: Program, owner: ast.ClassDef) -> bool:
    if program.values.derives_from(owner, "torch.utils.data.IterableDataset"):
        return _SHARES.search(ast.unparse(owner)) is not None or not _is_iterable(program, owner)
    return any(
        isinstance(node, ast.Name | ast.Attribute | ast.Call) and program.values.kinds(node) & _BY_RANK
        for node in ast.walk(owner)
        if isinstance(node, ast.expr)
    )


def _seeds_by_rank(program: Program) -> bool:
    """Whether each rank draws its own order."""
    for name in _SEEDERS:
        for step in program.calls(name):
            if program.values.depends_on(step.node if isinstance(step.node, ast.Call) else None, _BY_RANK):
                return True
    return any(
        isinstance(step.node, ast.Call) and program.values.depends_on(step.node, _BY_RANK)
        for name in ("manual_seed", "seed_everything", "set_seed")
        for step in program.methods.get(name, [])
    )


RULE = Rule(
    title="the training data is not split among the ranks",
    why=(
        "Without a DistributedSampler each rank reads all of the data: an epoch takes as long as on one "
        "GPU, and every sample is learned once per rank."
    ),
    find=_find,
)
