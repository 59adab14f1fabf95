"""What an expression may hold: a wrapped model, a sampler, a rank, or `unknown`."""

import ast
import re
from dataclasses import dataclass

from gpudiag.lint import vocabulary as known
from gpudiag.lint.arguments import (
    argument_name,
    argument_of,
    declared_arguments,
    default_of,
    key_of_configuration,
)
from gpudiag.lint.flow import Flow
from gpudiag.lint.names import EACH, Binding, Function, Names, Path

_DEPTH = 12  # of names that stand for names; deeper values are unknown

_MOST_LOOKS = 400  # expressions behind one; values that need more are unknown

RANKS = frozenset({"rank", "local_rank", "spawn_index", "rank_name", "local_rank_name"})


@dataclass(frozen=True, slots=True)
class Value:
    """One thing that an expression may hold, and the expression that made it."""

    kind: str
    node: ast.AST | None = None


UNKNOWN = frozenset({Value("unknown")})


def _is_of_hub(names: Names, value: Value) -> bool:
    return isinstance(value.node, ast.Call) and names.qualify(value.node.func) == "datasets.load_dataset"


class Values(Flow):
    """What the expressions of one script hold."""

    def __init__(self, names: Names) -> None:
        """For the script with these names."""
        self.names = names
        self.arguments = declared_arguments(names)
        self.callers: dict[ast.AST, list[ast.Call]] = {}
        self.spawned: dict[ast.AST, list[ast.Call]] = {}
        self._known: dict[tuple[ast.AST, Path], frozenset[Value]] = {}
        self._open: set[tuple[ast.AST, Path]] = set()
        self._looked = 0  # expressions looked at for the current one
        self._find_callers()

    def of(self, node: ast.AST | None, path: Path = ()) -> frozenset[Value]:
        """What the expression, or the part of it at `path`, may hold."""
        if node is None or not isinstance(node, ast.expr):
            return UNKNOWN
        key = (node, path)
        if key in self._known:
            return self._known[key]
        if key in self._open or len(self._open) > _DEPTH * 8:
            return frozenset()
        if not self._open:
            self._looked = 0
        self._looked += 1
        if self._looked > _MOST_LOOKS:
            return UNKNOWN
        self._open.add(key)
        try:
            found = self._evaluate(node, path)
        finally:
            self._open.discard(key)
        if not self._open:  # what was found within a circle is not the whole of it
            self._known[key] = found
        return found

    def kinds(self, node: ast.AST | None) -> frozenset[str]:
        """The kinds of what the expression may hold."""
        return frozenset(value.kind for value in self.of(node))

    def is_only(self, node: ast.AST | None, *kinds: str) -> bool:
        """Whether it holds one of these kinds on every path of the script."""
        found = self.kinds(node)
        return bool(found) and found <= set(kinds)

    def depends_on(self, node: ast.AST | None, kinds: frozenset[str], depth: int = 6) -> bool:
        """Whether the expression depends on a value of these kinds, also through names and arguments."""
        if node is None or depth < 0:
            return False
        for part in ast.walk(node):
            if not isinstance(part, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                continue
            if self.kinds(part) & kinds:
                return True
            if isinstance(part, ast.Name | ast.Attribute) and isinstance(
                getattr(part, "ctx", None), ast.Load
            ):
                made = [v for b in self.reaching(part) for v in ([b.value] if b.value else self.given_for(b))]
                if any(self.depends_on(value, kinds, depth - 1) for value in made):
                    return True
        return False

    def given_for(self, binding: Binding) -> list[ast.expr]:
        """What the callers in this script give for a parameter; nothing for any other binding."""
        function = self.names.function_around(binding.node) if binding.parameter else None
        if function is None or not isinstance(binding.node, ast.arg):
            return []
        given = (argument_of(function, binding.node.arg, call) for call in self.callers.get(function, []))
        return [value for value in given if value is not None]

    def function_of(self, node: ast.AST | None) -> Function | None:
        """The function of this script that an expression names: directly, by self, or by an object."""
        if isinstance(node, ast.Lambda):
            return node
        if isinstance(node, ast.Name):
            for binding in self.names.bindings_of(node):
                if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
                    return binding.node
            return None
        if isinstance(node, ast.Attribute) and node.attr in self.names.methods:
            owner = self.class_of(node.value)
            return self.method_of(owner, node.attr) if owner is not None else None
        return None

    def class_of(self, node: ast.AST | None) -> ast.ClassDef | None:
        """The class of this script whose object, or which itself, an expression is."""
        if not self.names.classes:
            return None
        if isinstance(node, ast.Name) and node.id in ("self", "cls"):
            return self.names.class_around(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            around = self.names.class_around(node)
            bases = [self.class_of(base) for base in around.bases] if around is not None else []
            return next((base for base in bases if base is not None), None)
        if isinstance(node, ast.Name):
            for binding in self.names.bindings_of(node):
                if isinstance(binding.node, ast.ClassDef):
                    return binding.node
        if not isinstance(node, ast.expr):
            return None
        return next(
            (
                v.node
                for v in self.of(node)
                if v.kind in ("instance", "module") and isinstance(v.node, ast.ClassDef)
            ),
            None,
        )

    def class_named(self, node: ast.AST | None) -> ast.ClassDef | None:
        """The class of this script that an expression names, so that a call of it builds an object."""
        if not isinstance(node, ast.Name):
            return None
        if node.id == "cls":
            return self.names.class_around(node)
        if node.id == "self":
            return None
        for binding in self.names.bindings_of(node):
            if isinstance(binding.node, ast.ClassDef):
                return binding.node
        return next(
            (v.node for v in self.of(node) if v.kind == "class" and isinstance(v.node, ast.ClassDef)), None
        )

    def function_called(self, node: ast.expr) -> Function | None:
        """The function of this script that a call runs: also `__init__`, or `forward` of an object."""
        function = self.function_of(node)
        if function is not None:
            return function
        built = self.class_named(node)
        if built is not None:
            return self.method_of(built, "__init__")
        if not isinstance(node, ast.Name | ast.Attribute) or not self.names.methods & {"__call__", "forward"}:
            return None
        called = self.class_of(node)
        if called is None:
            return None
        return self.method_of(called, "__call__") or self.method_of(called, "forward")

    def method_of(self, owner: ast.ClassDef, name: str, depth: int = 4) -> Function | None:
        """The method of a class, its own or of a base in this script."""
        for statement in owner.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
                return statement
        for base in owner.bases if depth else ():
            above = self.class_of(base)
            found = self.method_of(above, name, depth - 1) if above is not None else None
            if found is not None:
                return found
        return None

    def derives_from(self, owner: ast.ClassDef, *qualified: str, depth: int = 5) -> bool:
        """Whether a class of this script derives from a named one; `package.` names all of a package."""
        for base in owner.bases:
            name = self.names.qualify(base) or ""
            if any(
                name == wanted or (wanted.endswith(".") and name.startswith(wanted)) for wanted in qualified
            ):
                return True
            above = self.class_of(base) if depth else None
            if (
                above is not None
                and above is not owner
                and self.derives_from(above, *qualified, depth=depth - 1)
            ):
                return True
        return False

    # Evaluating.

    def _evaluate(self, node: ast.expr, path: Path) -> frozenset[Value]:
        if isinstance(node, ast.Name | ast.Attribute):
            return self._name(node, path)
        if isinstance(node, ast.Call):
            return self._call(node, path)
        if isinstance(node, ast.IfExp):
            return self.of(node.body, path) | self.of(node.orelse, path)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*(self.of(part, path) for part in node.values))
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Starred):
            return self.of(node.value, path)
        if isinstance(node, ast.Constant):
            return frozenset({Value("none" if node.value is None else type(node.value).__name__, node)})
        if isinstance(node, ast.JoinedStr):
            return frozenset({Value("str", node)})
        if isinstance(node, ast.Subscript):
            return self._subscript(node, path)
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            return self._container(node, path)
        if isinstance(node, ast.Compare | ast.UnaryOp):
            return frozenset({Value("test", node)})
        if isinstance(node, ast.Lambda):
            return frozenset({Value("function", node)})
        return UNKNOWN

    def _container(self, node: ast.Tuple | ast.List | ast.Set | ast.Dict, path: Path) -> frozenset[Value]:
        parts = node.values if isinstance(node, ast.Dict) else node.elts
        if not path:
            return frozenset({Value("container", node)})
        first, rest = path[0], path[1:]
        if isinstance(first, int) and not isinstance(node, ast.Dict | ast.Set) and first < len(parts):
            return self.of(parts[first], rest)
        if isinstance(first, int) and isinstance(node, ast.Tuple):
            return frozenset()  # past its end: a parameter that keeps its default
        if isinstance(node, ast.Dict) and isinstance(first, str) and first != EACH:
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == first:
                    return self.of(value, rest)
        return frozenset().union(*(self.of(part, rest) for part in parts)) if parts else UNKNOWN

    def _subscript(self, node: ast.Subscript, path: Path) -> frozenset[Value]:
        if self.names.qualify(node.value) == "os.environ":
            return self._environment(node.slice, node)
        index = node.slice
        if isinstance(index, ast.Constant) and isinstance(index.value, int | str):
            found = self.of(node.value, (index.value, *path))
            key = key_of_configuration(node) if found in (UNKNOWN, frozenset()) and not path else ""
            return self._declared(key, node) if key else found
        return self.of(node.value, (EACH, *path))

    def _environment(self, name: ast.expr | None, node: ast.AST) -> frozenset[Value]:
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value in known.ENVIRONMENT:
            return frozenset({Value(f"{known.ENVIRONMENT[name.value]}_text", node)})
        return frozenset({Value("str", node)})

    def _name(self, node: ast.Name | ast.Attribute, path: Path) -> frozenset[Value]:
        bindings = self.reaching(node)
        if isinstance(node, ast.Attribute) and not bindings:
            return self._attribute(node, path)
        if not bindings:
            return self._by_convention(node.id if isinstance(node, ast.Name) else node.attr, node)
        name = node.id if isinstance(node, ast.Name) else node.attr
        found = [self._bound(binding, name, path, node) for binding in bindings]
        return frozenset().union(*found)

    def _bound(self, binding: Binding, name: str, path: Path, use: ast.AST) -> frozenset[Value]:
        if binding.parameter:
            return self._parameter(binding, name, path)
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return frozenset({Value("function", binding.node)})
        if isinstance(binding.node, ast.ClassDef):
            return frozenset({Value("class", binding.node)})
        if binding.added or binding.value is None:
            return self._by_convention(name, use) if binding.added else UNKNOWN
        found = self.of(binding.value, (*binding.path, *path))
        if found == UNKNOWN:
            return self._by_convention(name, use)
        return found

    def _parameter(self, binding: Binding, name: str, path: Path) -> frozenset[Value]:
        argument = binding.node
        arguments = self.names.parents.get(argument)
        function = self.names.parents.get(arguments) if arguments is not None else None
        if not isinstance(function, Function) or not isinstance(argument, ast.arg) or binding.path:
            return UNKNOWN
        found: set[Value] = set()
        for call in self.callers.get(function, []):
            value = argument_of(function, argument.arg, call)
            if value is not None:
                found |= self.of(value, path)
        for call in self.spawned.get(function, []):
            found |= self._spawned_argument(function, argument.arg, call, path)
        default = default_of(function, argument.arg)
        if not found:
            convention = self._by_convention(name, argument)
            if default is not None and convention == UNKNOWN:
                return self.of(default, path) | UNKNOWN
            return convention
        if default is not None and any(
            argument_of(function, argument.arg, call) is None for call in self.callers.get(function, [])
        ):
            found |= self.of(default, path)
        if found == set(UNKNOWN):
            return self._by_convention(name, argument)
        return frozenset(found)

    def _spawned_argument(
        self, function: Function, name: str, call: ast.Call, path: Path
    ) -> frozenset[Value]:
        """What `mp.spawn(fn, args=(..))` gives to a parameter: the first is the index of the process."""
        positional = [*function.args.posonlyargs, *function.args.args]
        place = next((i for i, argument in enumerate(positional) if argument.arg == name), None)
        by_spawn = self.names.qualify(call.func) in known.SPAWN
        given = next((k.value for k in call.keywords if k.arg == "args"), None)
        if given is None and by_spawn and len(call.args) > 1:
            given = call.args[1]
        if place is None:
            return UNKNOWN
        if by_spawn and place == 0:
            return frozenset({Value("spawn_index", call)})
        found = self.of(given, (place - by_spawn, *path)) if given is not None else UNKNOWN
        if any(
            value.kind == "loop_number" for value in found
        ):  # a process for each: now it is the number of one
            return self._by_convention(name, call)
        return found

    def _attribute(self, node: ast.Attribute, path: Path) -> frozenset[Value]:
        base = self.of(node.value)
        kinds = {value.kind for value in base}
        if node.attr == "module" and kinds & {"ddp", "dp", "fsdp1", "engine", "prepared"}:
            return frozenset({Value("inner", node)})
        if "accelerator" in kinds:
            special = {
                "is_main_process": "main_process",
                "is_local_main_process": "main_process",
                "is_last_process": "main_process",
                "process_index": "rank",
                "local_process_index": "local_rank",
                "num_processes": "world_size",
                "device": "device",
            }
            if node.attr in special:
                return frozenset({Value(special[node.attr], node)})
        if node.attr in self.arguments:
            return self._declared(node.attr, node)
        if node.attr in ("grad",):
            return frozenset({Value("grad", node)})
        if node.attr == "data":
            return base
        if node.attr in ("T", "real"):
            return base
        return self._by_convention(node.attr, node)

    def _declared(self, name: str, node: ast.AST) -> frozenset[Value]:
        """What a value of a configuration is, by its declaration or its name."""
        return self._argv(self.arguments[name]) if name in self.arguments else self._by_convention(name, node)

    def _argv(self, call: ast.Call) -> frozenset[Value]:
        """The value of a declared argument: text, unless its `type` is another."""
        name = argument_name(call)
        kind = {"rank": "rank", "local_rank": "local_rank", "world_size": "world_size"}.get(name)
        typed = any(keyword.arg in ("type", "action", "nargs") for keyword in call.keywords)
        if kind is None:
            return frozenset({Value("argv", call)})
        return frozenset({Value(kind if typed else f"{kind}_text", call)})

    def _by_convention(self, name: str, node: ast.AST) -> frozenset[Value]:
        lowered = name.lower().lstrip("_")
        if lowered in known.RANK_NAMES:
            return frozenset({Value("rank_name", node)})
        if lowered in known.LOCAL_RANK_NAMES:
            return frozenset({Value("local_rank_name", node)})
        if lowered in known.WORLD_SIZE_NAMES:
            return frozenset({Value("world_size", node)})
        if known.MAIN_WORDS.match(name):
            return frozenset({Value("main_process", node)})
        return frozenset({Value("accelerator", node)}) if lowered == "accelerator" else UNKNOWN

    def _call(self, node: ast.Call, path: Path) -> frozenset[Value]:
        name = self.names.qualify(node.func)
        if name is not None:
            found = self._known_call(node, name, path)
            if found is not None:
                return found
        if isinstance(node.func, ast.Attribute):
            found = self._method(node, node.func, path)
            if found is not None:
                return found
        if isinstance(node.func, ast.Name) and node.func.id in known.SAME_VALUE_CALLS and node.args:
            return self._converted(node, path)
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "enumerate"
            and node.args
            and path[:1] == (EACH,)
        ):
            return (
                self.of(node.args[0], (EACH, *path[2:]))
                if path[1:2] == (1,)
                else frozenset({Value("int", node)})
            )
        if isinstance(node.func, ast.Name) and node.func.id == "range" and path[:1] == (EACH,):
            # Of no single rank: each process counts through all of them.
            return frozenset({Value("loop_number", node)})
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "zip"
            and path[:1] == (EACH,)
            and len(path) > 1
            and isinstance(path[1], int)
            and path[1] < len(node.args)
        ):
            return self.of(node.args[path[1]], (EACH, *path[2:]))
        if isinstance(node.func, ast.Name) and node.func.id in ("float", "len", "round"):
            return frozenset({Value("number", node)})
        if isinstance(node.func, ast.Name) and node.func.id == "sum" and node.args:
            if isinstance(node.args[0], ast.GeneratorExp | ast.ListComp):
                return self.of(node.args[0].elt)
            return self.of(node.args[0], (EACH,))  # of tensors it is a tensor
        function = self.function_of(node.func)
        if function is not None and not isinstance(function, ast.Lambda):
            return self._returned(function, path)
        owner = self.class_named(node.func)
        if owner is not None and not path:
            is_module = self.derives_from(
                owner, "torch.nn.Module", "torch.nn.Sequential", "torch.nn.modules.Module", "lightning."
            )
            kind = "module" if is_module else "instance"
            if self.derives_from(owner, "torch.utils.data.", "torchvision.datasets."):
                return frozenset({Value("dataset", owner), Value("instance", owner)})
            return frozenset({Value(kind, owner)})
        called = self.function_called(node.func) if owner is None else None
        if called is not None and not isinstance(called, ast.Lambda):
            return self._returned(called, path)
        return self._by_name_of_function(node)

    def _by_name_of_function(self, node: ast.Call) -> frozenset[Value]:
        """What a function of another file returns, judged by its name: `get_rank()`, `is_main_process()`."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        bare = re.sub(r"^_?(?:get_|read_)?", "", name)
        return self._by_convention(bare, node) if bare else UNKNOWN

    def _converted(self, node: ast.Call, path: Path) -> frozenset[Value]:
        inner = self.of(node.args[0], path)
        if isinstance(node.func, ast.Name) and node.func.id == "int":
            return frozenset(Value(v.kind.removesuffix("_text"), v.node) for v in inner)
        return inner

    def _known_call(self, node: ast.Call, name: str, path: Path) -> frozenset[Value] | None:
        if name in known.KINDS_OF_CALLS:
            if name == known.SAMPLER and path:
                return UNKNOWN
            if known.KINDS_OF_CALLS[name] == "rank" and (node.args or node.keywords):  # of a group
                return UNKNOWN
            return frozenset({Value(known.KINDS_OF_CALLS[name], node)})
        if name in known.SAME_VALUE_CALLS and node.args:
            return self._converted(node, path)
        if name.startswith("horovod."):
            special = {
                "rank": "rank",
                "local_rank": "local_rank",
                "size": "world_size",
                "DistributedOptimizer": "hvd_optimizer",
            }
            kind = special.get(name.rsplit(".", 1)[1])
            return frozenset({Value(kind, node)}) if kind else None
        if name == "deepspeed.initialize":
            parts = {0: "engine", 1: "engine_optimizer", 2: "engine_loader", 3: "engine_scheduler"}
            kind = parts.get(path[0]) if path and isinstance(path[0], int) else None
            return frozenset({Value(kind, node)}) if kind else UNKNOWN
        if name in ("os.environ.get", "os.getenv") and node.args:
            found = self._environment(node.args[0], node)
            return found | (self.of(node.args[1]) if len(node.args) > 1 else frozenset({Value("none")}))
        if name.startswith("torch.optim.lr_scheduler."):
            return frozenset({Value("scheduler", node)})
        if name.startswith("torch.optim.") and name.rsplit(".", 1)[1][:1].isupper():
            return frozenset({Value("optimizer", node)})
        if name.startswith("torch.utils.data.") and name.endswith("Sampler"):
            return frozenset({Value("other_sampler", node)})
        if name.startswith(("torchvision.datasets.", "torchtext.datasets.", "torchaudio.datasets.")):
            return frozenset({Value("dataset", node)})
        if name.startswith("torchvision.models.") and not name.rsplit(".", 1)[1][:1].isupper():
            return frozenset({Value("module", node)})
        if known.LOSSES.match(name):
            return frozenset({Value("criterion", node)})
        if known.LAYERS.match(name) and name != "torch.nn.Parameter":
            return frozenset({Value("module", node)})
        return None

    def _method(self, node: ast.Call, func: ast.Attribute, path: Path) -> frozenset[Value] | None:
        base = self.of(func.value)
        kinds = {value.kind for value in base}
        if func.attr == "state_dict":
            return frozenset({Value("state_dict", node)})
        if func.attr in ("parameters", "named_parameters"):
            if path[:1] == (EACH,) and (func.attr == "parameters" or path[1:2] == (1,)):
                return frozenset({Value("parameter", node)})
            return frozenset({Value("parameters", node)})
        if func.attr == "item" and not node.args:
            return frozenset({Value("number", node)})
        if func.attr == "parse_args":
            return frozenset({Value("arguments", node)})
        if func.attr == "prepare" and "accelerator" in kinds:
            place = path[0] if path and isinstance(path[0], int) else 0
            return frozenset({Value("prepared", node.args[place] if place < len(node.args) else node)})
        if func.attr == "unwrap_model" and "accelerator" in kinds and path == ():
            return frozenset({Value("inner", node)})
        if (
            kinds & {"module", "ddp", "dp", "fsdp1", "prepared", "inner"}
            and func.attr in known.SAME_VALUE_METHODS
        ):
            return base
        if func.attr == "clone" or (func.attr in known.SAME_VALUE_METHODS and kinds & {"grad", "parameter"}):
            return base
        if func.attr in known.SAME_DATA and any(_is_of_hub(self.names, value) for value in base):
            return base
        if kinds & {"container"} and func.attr in ("values",):
            return frozenset().union(*(self.of(v.node, path) for v in base if isinstance(v.node, ast.Dict)))
        return None

    def _returned(self, function: Function, path: Path) -> frozenset[Value]:
        found: set[Value] = set()
        for node in self.names.returns.get(function, ()):
            found |= self.of(node.value, path) if node.value is not None else {Value("none")}
        return frozenset(found) or UNKNOWN

    def _find_callers(self) -> None:
        for call in self.names.calls:
            function = self.function_called(call.func)
            if function is not None:
                self.callers.setdefault(function, []).append(call)
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                passed = (
                    self.function_of(argument) if isinstance(argument, ast.Name | ast.Attribute) else None
                )
                if passed is not None and not isinstance(passed, ast.Lambda):
                    self.spawned.setdefault(passed, []).append(call)
        self._known.clear()  # found before all callers were
