"""One script as the rules see it: its calls in order, the owner of the training loop, its words."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gpudiag.lint import vocabulary as known
from gpudiag.lint.names import Names
from gpudiag.lint.ranks import RankConditions, Which
from gpudiag.lint.reader import Line, Script, SourceFile
from gpudiag.lint.syntax import Parsed
from gpudiag.lint.trace import Loop, Step, trace_script
from gpudiag.lint.values import Values
from gpudiag.model.lint import Edit, Place, Severity

# Packages that open the process group, wrap the model, shard the data and save by themselves.
_OWNERS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "ray": "Ray",
    "ignite": "Ignite",
    "composer": "Composer",
    "colossalai": "ColossalAI",
    "mmengine": "MMEngine",
    "mmcv": "MMCV",
    "fastai": "fastai",
    "catalyst": "Catalyst",
    "trl": "TRL",
    "determined": "Determined",
    "megatron": "Megatron",
    "detectron2": "Detectron2",
    "torchtnt": "TorchTNT",
    "axolotl": "Axolotl",
    "nemo": "NeMo",
    "sentence_transformers": "Sentence Transformers",
    "torchrec": "TorchRec",
    "fairseq": "fairseq",
    "flwr": "Flower",
    "syft": "PySyft",
    "torchdistill": "torchdistill",
}
_COMMENT = re.compile(r"#[^\n]*")
_IMPORT = re.compile(r"^\s*(?:import|from)\s+([\w.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mistake:
    """What a rule found: the node, the message, and the corrected statement, or advice in words."""

    node: ast.AST
    message: str
    fix: str
    edits: tuple[Edit, ...] = ()
    severity: Severity | None = None  # other than its rule's
    line: Line | None = None  # of a shell command, in place of the node
    place: Place | None = None  # of `fix`; None: it replaces the statement
    advice: str = ""  # where `fix` is empty


class Program:
    """One script of a file, read once for all rules."""

    def __init__(self, file: SourceFile, script: Script, parsed: Parsed) -> None:
        """Read the tree; nothing is run."""
        self.file, self.script, self.lines = file, script, parsed.lines
        self.tree = parsed.tree
        self.names = Names(parsed.tree, conventional=not script.whole)
        self.values = Values(self.names)
        self.ranks = RankConditions(self.values)
        self.code = _COMMENT.sub("", _without_docstrings(parsed, self.names.nodes))

    @cached_property
    def steps(self) -> list[Step]:
        """The steps that the script executes, in order."""
        return trace_script(self.values)

    @cached_property
    def _called(self) -> dict[str, list[Step]]:
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            if isinstance(step.node, ast.Call):
                name = self.names.qualify(step.node.func)
                if name is not None:
                    found.setdefault(name, []).append(step)
        return found

    def calls(self, *qualified: str) -> list[Step]:
        """The steps that call one of these, by their full names, in order of the names."""
        return [step for name in qualified for step in self._called.get(name, [])]

    def calls_within(self, package: str) -> Iterator[tuple[str, Step]]:
        """The steps that call something of a package, with its name there."""
        for name, steps in self._called.items():
            if name.startswith(package + "."):
                for step in steps:
                    yield name.rsplit(".", 1)[1], step

    @cached_property
    def methods(self) -> dict[str, list[Step]]:
        """The steps that call a method, by its name."""
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            if isinstance(step.node, ast.Call) and isinstance(step.node.func, ast.Attribute):
                found.setdefault(step.node.func.attr, []).append(step)
        return found

    def mentions(self, *words: str) -> bool:
        """Whether the code of the script has one of the words anywhere, its comments aside."""
        return any(
            word in self._words if word.isidentifier() else re.search(rf"\b{word}\b", self.code) is not None
            for word in words
        )

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", self.code))

    def imports(self, *packages: str) -> bool:
        """Whether the script imports one of the packages."""
        return any(package in self._imported for package in packages)

    @cached_property
    def _imported(self) -> frozenset[str]:
        """The packages that the script imports, and all above them."""
        found = set()
        for module in _IMPORT.findall(self.code):
            parts = module.split(".")
            found |= {".".join(parts[: count + 1]) for count in range(len(parts))}
        return frozenset(found)

    @property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, by text."""
        return self.names.nodes

    @cached_property
    def owner(self) -> str | None:
        """The framework that owns the training loop, None where the script does."""
        for package, name in _OWNERS.items():
            if self.imports(package):
                return name
        if self.imports("torch.distributed.rpc") or self.mentions(
            "init_rpc", "rpc_sync", "rpc_async", "dist_autograd"
        ):
            return "torch's RPC"
        if self.imports("transformers") and any(map(self._is_hugging_face, ("Trainer", "Seq2SeqTrainer"))):
            return "Hugging Face's Trainer"
        return None

    def _is_hugging_face(self, word: str) -> bool:
        """Whether a trainer is that of transformers, and not a class of the script or of another package."""
        if not self.mentions(word):
            return False
        scopes = (self.names.module, *self.names.scopes.values())
        bindings = [binding for scope in scopes for binding in scope.bindings.get(word, [])]
        return not bindings or any(
            binding.qualified.startswith("transformers.")
            or (
                isinstance(binding.node, ast.ClassDef)
                and self.values.derives_from(binding.node, "transformers.")
            )
            for binding in bindings
        )

    @cached_property
    def uses_accelerate(self) -> bool:
        """Whether Accelerate shards and synchronises here."""
        return bool(self.calls("accelerate.Accelerator")) or self.imports("accelerate")

    @cached_property
    def uses_deepspeed(self) -> bool:
        """Whether DeepSpeed does."""
        return self.imports("deepspeed") or bool(self.calls("deepspeed.initialize"))

    @cached_property
    def uses_horovod(self) -> bool:
        """Whether Horovod does."""
        return self.imports("horovod")

    @cached_property
    def starts_horovod(self) -> bool:
        """Whether this file starts Horovod: another one is part of a program that may do more elsewhere."""
        return any(name.startswith("horovod.") and name.endswith(".init") for name in self._called)

    @cached_property
    def averages_by_horovod(self) -> bool:
        """Whether Horovod's optimizer averages the gradients of a torch model."""
        return any(name == "DistributedOptimizer" for name, _ in self.calls_within("horovod.torch"))

    @cached_property
    def nexts(self) -> list[ast.Call]:
        """The calls of `next`, by which loops take batches from an iterator."""
        return [
            c for c in self.names.calls if isinstance(c.func, ast.Name) and c.func.id == "next" and c.args
        ]

    @cached_property
    def ddp_steps(self) -> list[Step]:
        """Where a model is wrapped in DDP."""
        return self.calls(*sorted(known.DDP_CLASSES))

    @cached_property
    def opens_group(self) -> list[Step]:
        """Where the script itself opens the process group."""
        return self.calls(known.INIT)

    @cached_property
    def starts_processes(self) -> bool:
        """Whether the script starts its ranks itself."""
        return bool(self.calls(*sorted(known.SPAWN))) or self.mentions(
            "Process", "start_processes", "spawn", "Popen"
        )

    @cached_property
    def backwards(self) -> list[Step]:
        """Where gradients are computed, outside functions that nothing calls as a loss or a hook."""
        return self.methods.get("backward", [])

    def training_loops(self) -> list[tuple[Step, Loop]]:
        """Each backward pass with the innermost loop around it."""
        return [(step, step.where.loops[-1]) for step in self.backwards if step.where.loops]

    def which_ranks(self, step: Step) -> Which | None:
        """The ranks that reach a step; None where no condition excludes any."""
        return self.ranks.of(step.where)

    # Lines and edits.

    def line_at(self, number: int) -> Line:
        """A line of the script, by the number that its tree has."""
        return self.lines[min(max(number, 1), len(self.lines)) - 1]

    def column_of(self, number: int, offset: int) -> int:
        """An offset in bytes, as trees have it, in characters of the script's line."""
        return len(self.line_at(number).text.encode()[:offset].decode(errors="replace"))

    def statement_text(self, node: ast.AST) -> str:
        """The statement that a node is part of, on one line."""
        statement = self.names.statement_of(node)
        if statement is None or hasattr(statement, "body"):
            return self.line_at(getattr(node, "lineno", 1)).text.strip()
        return ast.unparse(statement)

    def edit(self, node: ast.AST, text: str) -> tuple[Edit, ...]:
        """The edit that replaces the node by `text`; none where it spans lines, or the file is a notebook."""
        begin, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if not self.script.editable or not begin or begin != end:
            return ()
        return (self._edit(begin, getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0), text),)

    def _edit(self, number: int, begin: int, end: int, text: str) -> Edit:
        line = self.line_at(number)
        first, last = self.column_of(number, begin), self.column_of(number, end)
        return Edit(line.number, line.shift + first, line.shift + last, text)

    def edit_span(self, number: int, begin: int, end: int, text: str) -> tuple[Edit, ...]:
        """The edit of a span of one line, in bytes as trees count them."""
        return (self._edit(number, begin, end, text),) if self.script.editable else ()

    def edited_line(self, edits: tuple[Edit, ...]) -> str:
        """The first edited line after the edit, without indentation."""
        [first, *_] = edits
        number = next(place for place, line in enumerate(self.lines, 1) if line.number == first.line)
        line = self.line_at(number)
        text = line.text
        for edit in sorted(
            (e for e in edits if e.line == first.line and not e.before), key=lambda e: e.column, reverse=True
        ):
            text = text[: edit.column - line.shift] + edit.text + text[edit.end_column - line.shift :]
        return text.strip()


def _without_docstrings(parsed: Parsed, nodes: list[ast.AST]) -> str:
    """The lines of a script with docstrings and other lone strings blanked out."""
    lines = [line.text for line in parsed.lines]
    for node in nodes:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[number - 1] = ""
    return "\n".join(lines)


def keyword(call: ast.AST, name: str) -> ast.expr | None:
    """The value of a keyword of a call; None where it is not given by its name."""
    return (
        next((k.value for k in call.keywords if k.arg == name), None) if isinstance(call, ast.Call) else None
    )


def argument(call: ast.AST, place: int, name: str) -> ast.expr | None:
    """The value of an argument, by its place or its name."""
    if not isinstance(call, ast.Call):
        return None
    if len(call.args) > place and not any(isinstance(part, ast.Starred) for part in call.args[: place + 1]):
        return call.args[place]
    return keyword(call, name)


def has_star(call: ast.AST) -> bool:
    """Whether arguments of a call are unpacked, so that they are unknown."""
    return isinstance(call, ast.Call) and (
        any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)
    )


def hides(program: Program, call: ast.AST, *words: str) -> bool:
    """Whether unpacked arguments of a call may hold one of these keywords: a literal dict shows its own."""
    if not isinstance(call, ast.Call):
        return True
    if any(isinstance(part, ast.Starred) for part in call.args):
        return True
    for given in call.keywords:
        if given.arg is not None:
            continue
        values = program.values.of(given.value)
        if isinstance(given.value, ast.Name) and given.value.id in program.names.changed_containers:
            return True
        if not values or any(
            not isinstance(value.node, ast.Dict | ast.Call) or value.kind == "unknown" for value in values
        ):
            return True
        for value in values:
            keys = value.node.keys if isinstance(value.node, ast.Dict) else []
            if any(not isinstance(key, ast.Constant) or key.value in words for key in keys):
                return True
    return False


def is_constant(node: ast.AST | None, *values: object) -> bool:
    """Whether a node is a literal of one of these values; True is not 1 here."""
    return isinstance(node, ast.Constant) and any(
        node.value is value or (node.value == value and type(node.value) is type(value)) for value in values
    )
