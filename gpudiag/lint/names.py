"""The scopes of a script, the bindings of each name, and the full name of what is imported."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from gpudiag.lint.vocabulary import CLASSES_ALIKE, CONVENTIONAL_NAMES, canonical_name, star_names

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Path = tuple[int | str, ...]  # into a value: an index, or EACH for what a loop takes from it
EACH = "*"


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One place that binds a name: the value, where it is an expression, and the part of it."""

    node: ast.AST  # the statement
    value: ast.expr | None = None
    path: Path = ()
    qualified: str = ""  # of an import
    parameter: bool = False
    added: bool = False  # by an augmented assignment


# Nodes that qualify another one (Load, Add) and have no children.
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def _children_of(node: ast.AST) -> list[ast.AST]:
    """The nodes in a node, without marks such as Load and Add: twice as fast as `ast.iter_child_nodes`."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [part for part in value if isinstance(part, ast.AST) and not isinstance(part, _MARKS)]
        elif isinstance(value, ast.AST) and not isinstance(value, _MARKS):
            found.append(value)
    return found


@dataclass(slots=True, eq=False)
class Scope:
    """A module, function or class, and what is bound in it."""

    node: ast.AST
    parent: "Scope | None"
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)


class Names:
    """The scopes of one script; nothing in it is run."""

    def __init__(self, tree: ast.Module, *, conventional: bool) -> None:
        """Read the tree; `conventional` lets names that are nowhere bound mean what they do in most texts."""
        self.tree = tree
        self.conventional = conventional
        self.module = Scope(tree, None)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {}
        self._homes: dict[ast.AST, Scope] = {}  # of each node: the scope in which it is evaluated
        self.children: dict[ast.AST, list[ast.AST]] = {}
        self.methods: set[str] = set()  # the names of functions in classes
        self.order: dict[ast.AST, int] = {}  # by text
        self.attributes: dict[
            str, list[tuple[Scope, Binding]]
        ] = {}  # `self.model`, `args.rank`, by their text
        self.nodes: list[ast.AST] = []  # all, by text
        self.functions: list[Function] = []
        self.returns: dict[Function, list[ast.Return]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.calls: list[ast.Call] = []
        self.loaded: list[ast.Name] = []
        self.stars: list[str] = []
        self.bound: set[str] = set()  # names, in any scope
        self._qualified: dict[ast.AST, str | None] = {}
        self._read(tree, self.module)
        for call in self.calls:
            self._unpack(call)

    def qualify(self, node: ast.AST | None) -> str | None:
        """The full name of an expression, through imports and aliases: `torch.nn.DataParallel`."""
        if node is None:
            return None
        if node not in self._qualified:
            self._qualified[node] = None  # a name that is bound to itself has none
            self._qualified[node] = self._qualify(node)
        return self._qualified[node]

    def _qualify(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Attribute):
            base = self.qualify(node.value)
            return canonical_name(f"{base}.{node.attr}") if base else None
        if isinstance(node, ast.Subscript):
            return self._one_of_several(node)
        if not isinstance(node, ast.Name):
            return None
        bindings = self.bindings_of(node)
        imports = [binding.qualified for binding in bindings if binding.qualified]
        if imports:
            return canonical_name(imports[0])
        if len(bindings) == 1:
            value = bindings[0].value
            return (
                self.qualify(value)
                if isinstance(value, ast.Name | ast.Attribute) and not bindings[0].path
                else None
            )
        if bindings or node.id in self.bound:
            return None
        for module in self.stars:
            if node.id in star_names(module):
                return canonical_name(f"{module}.{node.id}")
        if self.conventional and node.id in CONVENTIONAL_NAMES:
            return canonical_name(CONVENTIONAL_NAMES[node.id])
        return None

    def _one_of_several(self, node: ast.Subscript) -> str | None:
        """The first name of a table of one package's classes: `OPTIMIZERS[name]`."""
        bindings = self.bindings_of(node.value) if isinstance(node.value, ast.Name) else []
        table = bindings[0].value if len(bindings) == 1 and not bindings[0].path else None
        parts = [self.qualify(part) or "" for part in table.values] if isinstance(table, ast.Dict) else []
        packages = {part.rpartition(".")[0] for part in parts}
        return parts[0] if len(packages) == 1 and packages <= CLASSES_ALIKE else None

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which a node is evaluated: defaults and decorators of a function in that around it."""
        return self.scopes.get(node) or self._homes.get(node, self.module)

    def bindings_of(self, node: ast.Name) -> list[Binding]:
        """All that binds a name in the scope that it comes from."""
        scope = self.find_scope(node)
        return scope.bindings[node.id] if scope is not None else []

    def find_scope(self, node: ast.Name) -> Scope | None:
        """The scope that a name comes from; None where nothing in the script binds it there."""
        scope: Scope | None = self.scope_of(node)
        first = True
        while scope is not None:
            skipped = isinstance(scope.node, ast.ClassDef) and not first
            if node.id in scope.bindings and not skipped:
                return scope
            scope, first = scope.parent, False
        return None

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from the innermost out."""
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def function_around(self, node: ast.AST) -> Function | None:
        """The function that a node stands in."""
        return next((outer for outer in self.ancestors(node) if isinstance(outer, Function)), None)

    def class_around(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose method a node stands in."""
        return next((outer for outer in self.ancestors(node) if isinstance(outer, ast.ClassDef)), None)

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """The statement that a node is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next((outer for outer in self.ancestors(node) if isinstance(outer, ast.stmt)), None)

    # Reading the tree.

    def _read(self, node: ast.AST, scope: Scope) -> None:
        """Read what is in a node, each child in the scope in which it is evaluated."""
        children = self.children[node] = _children_of(node)
        outside: list[ast.expr | None] = []  # what is evaluated around a function or class, and not in it
        if isinstance(node, ast.arguments):
            outside = [*node.defaults, *node.kw_defaults]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            outside = [*node.decorator_list]
        for child in children:
            self.parents[child] = node
            self._read_child(child, scope.parent or scope if outside and child in outside else scope)

    def _read_child(self, node: ast.AST, scope: Scope) -> None:
        self.order[node] = len(self.order)
        self.nodes.append(node)
        self._homes[node] = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            self._read_function(node, scope)
            return
        if isinstance(node, ast.ClassDef):
            self._bind(scope, node.name, Binding(node))
            self.classes.setdefault(node.name, node)
            self.scopes[node] = Scope(node, scope)
            self._read(node, self.scopes[node])
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._read_import(node, scope)
        elif isinstance(node, ast.Call):
            self.calls.append(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self.loaded.append(node)
        elif isinstance(node, ast.Return) and isinstance(scope.node, Function):
            self.returns.setdefault(scope.node, []).append(node)
        elif isinstance(node, ast.Global):
            scope.globals |= set(node.names)
        elif isinstance(node, ast.Nonlocal):
            scope.nonlocals |= set(node.names)
        else:
            self._read_bindings(node, scope)
        self._read(node, scope)

    def _unpack(self, call: ast.Call) -> None:
        """Put the keywords of `f(**options)` in the call, where a literal of the script has them."""
        keywords: list[ast.keyword] = []
        for given in call.keywords:
            literal = self._literal_of(given.value) if given.arg is None else None
            keywords += literal if literal is not None else [given]
        call.keywords = keywords

    def _literal_of(self, node: ast.expr) -> list[ast.keyword] | None:
        """The keywords in a dict that is written down, directly or under a name that nothing changes."""
        if isinstance(node, ast.Name):
            bindings = self.bindings_of(node)
            if (
                len(bindings) != 1
                or bindings[0].value is None
                or bindings[0].path
                or node.id in self.changed_containers
            ):
                return None
            node = bindings[0].value
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            named = [
                (key, value) for key, value in zip(keys, node.values, strict=True) if isinstance(key, str)
            ]
            return [ast.keyword(key, value) for key, value in named] if len(named) == len(keys) else None
        is_dict = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"
        if (
            not is_dict
            or not isinstance(node, ast.Call)
            or node.args
            or any(k.arg is None for k in node.keywords)
        ):
            return None
        return list(node.keywords)

    @cached_property
    def changed_containers(self) -> frozenset[str]:
        """The names of containers that the script changes: `options["sampler"] = ..`, `options.update()`."""
        changed = {
            node.value.id
            for node in self.nodes
            if isinstance(node, ast.Subscript)
            and not isinstance(node.ctx, ast.Load)
            and isinstance(node.value, ast.Name)
        }
        changed |= {
            call.func.value.id
            for call in self.calls
            if isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.attr in ("update", "pop", "setdefault", "clear", "popitem")
        }
        return frozenset(changed)

    def _read_function(self, node: Function, scope: Scope) -> None:
        inner = Scope(node, scope)
        self.scopes[node] = inner
        self.functions.append(node)
        if not isinstance(node, ast.Lambda):
            self._bind(scope, node.name, Binding(node))
            if isinstance(scope.node, ast.ClassDef):
                self.methods.add(node.name)
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._bind(inner, argument.arg, Binding(argument, parameter=True))
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                self._bind(inner, rest.arg, Binding(rest, parameter=True, path=("rest",)))
        self._read(node, inner)

    def _read_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for name in node.names:
                bound = name.asname or name.name.split(".")[0]
                qualified = name.name if name.asname else name.name.split(".")[0]
                self._bind(scope, bound, Binding(node, qualified=qualified))
            return
        module = "." * node.level + (node.module or "")
        for name in node.names:
            if name.name == "*":
                self.stars.append(module)
            else:
                self._bind(scope, name.asname or name.name, Binding(node, qualified=f"{module}.{name.name}"))

    def _read_bindings(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_target(target, node, node.value, (), scope)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._bind_target(node.target, node, node.value, (), scope)
        elif isinstance(node, ast.AugAssign):
            self._bind_target(node.target, node, node.value, (), scope, added=True)
        elif isinstance(node, ast.NamedExpr):
            self._bind_target(node.target, node, node.value, (), scope)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._bind_target(node.target, node, node.iter, (EACH,), scope)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind_target(node.optional_vars, node, node.context_expr, (), scope)
        elif (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, ast.MatchAs | ast.MatchStar) and node.name
        ):
            self._bind(scope, node.name, Binding(node))

    def _bind_target(
        self,
        target: ast.expr,
        node: ast.AST,
        value: ast.expr,
        path: Path,
        scope: Scope,
        *,
        added: bool = False,
    ) -> None:
        if isinstance(target, ast.Name):
            self._bind(scope, target.id, Binding(node, value, path, added=added))
        elif isinstance(target, ast.Tuple | ast.List):
            for place, part in enumerate(target.elts):
                if isinstance(part, ast.Starred):
                    self._bind_target(part.value, node, value, (*path, "rest"), scope)
                else:
                    self._bind_target(part, node, value, (*path, place), scope)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            key = f"{target.value.id}.{target.attr}"
            self.attributes.setdefault(key, []).append((scope, Binding(node, value, path, added=added)))

    def _bind(self, scope: Scope, name: str, binding: Binding) -> None:
        self.bound.add(name)
        home = self.module if name in scope.globals else scope
        while name in home.nonlocals and home.parent is not None:
            home = home.parent
        home.bindings.setdefault(name, []).append(binding)
