"""The local rank taken from the command line alone, where torchrun does not put it."""

import ast
from collections.abc import Iterator

from gpudiag.lint.arguments import argument_name
from gpudiag.lint.corrections import in_front_of, with_replaced
from gpudiag.lint.program import Mistake, Program, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import keyword_node
from gpudiag.model.lint import Edit


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate or program.uses_deepspeed or program.uses_horovod:
        return
    if not program.opens_group or program.starts_processes:
        return
    if program.mentions("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "get_node_local_rank"):
        return
    yield from _find_argv(program)
    yield from _find_options(program)
    for call in program.names.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        name = argument_name(call)
        if (
            not (name == "local_rank" or _names_local_rank(call))
            or not _is_used(program, name)
            or _is_overridden(program, name)
        ):
            continue
        edits = _edits(program, call)
        fixed = _fixed(call)
        yield Mistake(
            call,
            (
                "the local rank is read from --local_rank only, which torchrun does not pass: every rank "
                "gets the default"
            ),
            program.edited_line(edits)
            if edits and not edits[0].before
            else with_replaced(program, call, fixed),
            edits,
        )


def _find_argv(program: Program) -> Iterator[Mistake]:
    """`local_rank = int(sys.argv[1])`."""
    for node in program.nodes:
        if (
            not isinstance(node, ast.Assign)
            or len(node.targets) != 1
            or not isinstance(node.targets[0], ast.Name)
        ):
            continue
        name = node.targets[0].id
        reads = any(
            program.names.qualify(part) == "sys.argv"
            for part in ast.walk(node.value)
            if isinstance(part, ast.Attribute | ast.Name)
        )
        if reads and name.lower() in ("local_rank", "localrank"):
            yield Mistake(
                node,
                f"{name} is read from the command line only, and torchrun does not pass it there",
                f'{name} = int(os.environ["LOCAL_RANK"])',
            )


def _find_options(program: Program) -> Iterator[Mistake]:
    """`@click.option("--local-rank")`, and `local_rank: int = typer.Option(0)`."""
    for function in program.names.functions:
        if isinstance(function, ast.Lambda):
            continue
        options = [d for d in function.decorator_list if _is_option(program, d)]
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        if "local_rank" not in [argument.arg for argument in arguments]:
            continue
        given: ast.expr | None = next(
            (o for o in options if isinstance(o, ast.Call) and _names_local_rank(o)), None
        )
        if given is None:
            defaults = [*function.args.defaults, *(d for d in function.args.kw_defaults if d is not None)]
            given = next(
                (d for d in defaults if program.names.qualify(getattr(d, "func", None)) == "typer.Option"),
                None,
            )
        if given is None:
            continue
        read = any(
            isinstance(n, ast.Name) and n.id == "local_rank" and isinstance(n.ctx, ast.Load)
            for n in ast.walk(function)
        )
        stored = any(
            isinstance(n, ast.Name) and n.id == "local_rank" and isinstance(n.ctx, ast.Store)
            for n in ast.walk(function)
        )
        if read and not stored:
            place = in_front_of(program, function.body[0])
            yield Mistake(
                given,
                (
                    "the local rank is read from an option only, which torchrun does not pass: every rank "
                    "gets the default"
                ),
                'local_rank = int(os.environ["LOCAL_RANK"])',
                place=place,
            )


def _is_option(program: Program, node: ast.expr) -> bool:
    return program.names.qualify(getattr(node, "func", None)) in (
        "click.option",
        "click.argument",
        "rich_click.option",
    )


def _names_local_rank(option: ast.Call) -> bool:
    texts = [a.value for a in option.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return any(text.lstrip("-").replace("-", "_") == "local_rank" for text in texts)


def _is_used(program: Program, name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        for node in program.nodes
    )


def _is_overridden(program: Program, name: str) -> bool:
    return any(key.endswith(f".{name}") and not key.startswith("self.") for key in program.names.attributes)


def _default(call: ast.Call) -> str:
    given = keyword(call, "default")
    return ast.unparse(given) if given is not None else "0"


def _fixed(call: ast.Call) -> str:
    default = ast.parse(f'int(os.environ.get("LOCAL_RANK", {_default(call)}))', mode="eval").body
    keywords = [k for k in call.keywords if k.arg not in ("default", "required")]
    return ast.unparse(ast.Call(call.func, call.args, [*keywords, ast.keyword("default", default)]))


def _edits(program: Program, call: ast.Call) -> tuple[Edit, ...]:
    """The edits that replace the default by the variable, and import os where nothing does."""
    given = keyword_node(call, "default")
    if given is None or not isinstance(given.value, ast.Constant | ast.UnaryOp):
        return ()
    edits = program.edit(given.value, f'int(os.environ.get("LOCAL_RANK", {_default(call)}))')
    if edits and "os" not in program.names.module.bindings:
        first = next(
            (
                s
                for s in program.tree.body
                if isinstance(s, ast.Import | ast.ImportFrom) and getattr(s, "module", "") != "__future__"
            ),
            None,
        )
        if first is None:
            return ()
        edits = (*edits, Edit(program.line_at(first.lineno).number, 0, 0, "import os", before=True))
    return edits


RULE = Rule(
    title="the local rank is read from the command line only",
    why=(
        "torchrun passes the local rank in the environment (LOCAL_RANK), and only the deprecated "
        "torch.distributed.launch wrote --local_rank. Under torchrun every rank keeps the default: all use "
        "GPU 0, or none knows its own."
    ),
    find=_find,
    fixes=True,
)
