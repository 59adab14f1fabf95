"""What an expression is computed from: the parts behind its names, and behind the calls that it makes."""

import ast
from collections.abc import Iterator, Sequence

from gpudiag.lint.arguments import default_of
from gpudiag.lint.names import Binding
from gpudiag.lint.program import Program, keyword
from gpudiag.lint.vocabulary import CONFIGURATION


def calls_behind(program: Program, nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """The calls by which some expressions are computed, through names."""
    return (part for part in behind(program, *nodes) if isinstance(part, ast.Call))


def behind(program: Program, *nodes: ast.AST) -> Iterator[ast.AST]:
    """The parts of some expressions, and of those that give their names a value."""
    left = list(nodes)
    seen: set[ast.AST] = set()
    while left:
        for part in ast.walk(left.pop()):
            yield part
            if isinstance(part, ast.Name | ast.Attribute) and part not in seen:
                made = [b.value for b in program.values.reaching(part) if b.value is not None]
                left += [value for value in made if value not in seen]
                seen.update([part, *made])


def origins(program: Program, *nodes: ast.AST, decided: bool = False) -> Iterator[ast.AST]:
    """The parts behind some expressions, also through returned values, arguments and configurations.

    Of a container only the item that is taken counts: `time.time()` of another key is no origin. With
    `decided`, the conditions count too under which a name gets its value.
    """
    left, seen = list(nodes), set()
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        left += _taken(program, node) or [*_made(program, node), *ast.iter_child_nodes(node)]
        if decided and isinstance(node, ast.Name | ast.Attribute):
            left += [test for b in program.values.reaching(node) for test in _conditions(program, b.node)]


def _conditions(program: Program, node: ast.AST) -> Iterator[ast.expr]:
    """The conditions around a statement, within its function."""
    for outer in program.names.ancestors(node):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        if isinstance(outer, ast.If):
            yield outer.test


def _taken(program: Program, node: ast.AST) -> list[ast.AST]:
    """The item that a subscript takes from a container of the script; nothing where it is unknown."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return []
    values = program.values.of(node)
    return [
        v.node for v in values if v.kind != "unknown" and isinstance(v.node, ast.expr) and v.node is not node
    ]


def _made(program: Program, node: ast.AST) -> list[ast.AST]:
    """The expressions that give a name its value, and those that a called function returns."""
    if isinstance(node, ast.Call):
        function = program.values.function_called(node.func)
        returned = program.names.returns.get(function, ()) if function is not None else ()
        return [result.value for result in returned if result.value is not None]
    if not isinstance(node, ast.Name | ast.Attribute):
        return []
    for outer in program.names.ancestors(node):
        for part in getattr(outer, "generators", ()):  # a comprehension has names of its own
            if any(isinstance(n, ast.Name) and n.id == ast.unparse(node) for n in ast.walk(part.target)):
                return [part.iter] if node not in ast.walk(part.iter) else []
    bindings = program.values.reaching(node)
    if bindings:
        return [value for binding in bindings for value in _given(program, binding)]
    return _configured(program, node) if isinstance(node, ast.Attribute) else []


def _given(program: Program, binding: Binding) -> list[ast.AST]:
    """The value of a binding; of a parameter, what the callers give, or else its default."""
    value, place = binding.value, binding.path[0] if binding.path else None
    if isinstance(value, ast.Tuple) and isinstance(place, int):
        return list(value.elts[place : place + 1])
    if value is not None:
        is_count = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "enumerate"
        return [] if is_count and binding.path[1:2] == (0,) else [value]
    given: list[ast.AST] = [*program.values.given_for(binding)]
    function = program.names.function_around(binding.node) if binding.parameter and not given else None
    if function is not None and isinstance(binding.node, ast.arg):
        default = default_of(function, binding.node.arg)
        given += [default] if default is not None else []
    return given


def _configured(program: Program, node: ast.Attribute) -> list[ast.AST]:
    """The default of a configuration's value: of a declared argument, or of a class of this script."""
    declared = program.values.arguments.get(node.attr)
    default = keyword(declared, "default") if declared is not None else None
    if default is not None:
        return [default]
    owner = program.values.class_of(node.value)
    holder = getattr(node.value, "id", getattr(node.value, "attr", ""))
    if owner is None and not CONFIGURATION.fullmatch(holder):
        return []
    owners = [owner] if owner is not None else [n for n in program.nodes if isinstance(n, ast.ClassDef)]
    return [
        field.value
        for home in owners
        for field in home.body
        if isinstance(field, ast.AnnAssign | ast.Assign)
        and field.value is not None
        and ast.unparse(field.target if isinstance(field, ast.AnnAssign) else field.targets[0]) == node.attr
    ]
