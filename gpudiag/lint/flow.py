"""Which assignments may give a name its value where it is used."""

import ast
from abc import abstractmethod

from gpudiag.lint.names import Binding, Function, Names, Scope


class Flow:
    """The order of assignments in one script: a later one on the same path replaces an earlier one."""

    names: Names

    @abstractmethod
    def class_of(self, node: ast.AST | None) -> ast.ClassDef | None:
        """The class of this script whose object an expression is."""

    def reaching(self, node: ast.Name | ast.Attribute) -> list[Binding]:
        """The bindings that may give an expression its value where it stands."""
        if isinstance(node, ast.Name):
            scope = self.names.find_scope(node)
            if scope is None:
                return []
            return self._reaching(node, scope, scope.bindings[node.id])
        if not isinstance(node.value, ast.Name):
            return []
        found = self.names.attributes.get(f"{node.value.id}.{node.attr}", [])
        here = self.names.class_around(node) if node.value.id in ("self", "cls") else None
        if node.value.id in ("self", "cls"):
            found = [(scope, binding) for scope, binding in found if self._same_class(binding.node, here)]
        elif not found and node.value.id not in ("self", "cls"):
            owner = self.class_of(node.value)
            if owner is not None:
                found = [
                    (scope, binding)
                    for scope, binding in self.names.attributes.get(f"self.{node.attr}", [])
                    if self._same_class(binding.node, owner)
                ]
        scope = self.names.scope_of(node)
        own = [binding for home, binding in found if home is scope]
        reached = self._reaching(node, scope, own) if own else []
        if reached and self._dominates(reached[-1], node):
            return reached
        others = [binding for home, binding in found if home is not scope]
        by_scope: dict[int, list[Binding]] = {}
        for binding in others:
            by_scope.setdefault(id(self.names.scope_of(binding.node)), []).append(binding)
        ends = [kept for bindings in by_scope.values() for kept in self._at_the_end(bindings)]
        return [*reached, *ends]

    def _same_class(self, node: ast.AST, owner: ast.ClassDef | None) -> bool:
        around = self.names.class_around(node)
        if around is None or owner is None or around is owner:
            return around is owner
        return any(self.class_of(base) is around for base in owner.bases) or any(
            self.class_of(base) is owner for base in around.bases
        )

    def _reaching(self, node: ast.AST, scope: Scope, bindings: list[Binding]) -> list[Binding]:
        if self.names.scope_of(node) is not scope:
            return self._at_the_end(bindings)
        statement = self.names.statement_of(node) or node
        order = self.names.order
        inside = set(self.names.ancestors(node))
        place = order.get(statement, 0)
        before = [b for b in bindings if order.get(b.node, 0) < place or b.parameter or b.node in inside]
        before = [b for b in before if b.node is not statement or isinstance(b.node, ast.For | ast.AsyncFor)]
        after = [b for b in bindings if b not in before]
        reached: list[Binding] = []
        stop: Binding | None = None
        for binding in sorted(before, key=lambda b: order.get(b.node, 0), reverse=True):
            if not any(self._replaces(later, binding) for later in reached):
                reached.append(binding)
            if not binding.added and self._dominates(binding, node):
                stop = binding
                break
        loops = [a for a in inside if isinstance(a, ast.For | ast.AsyncFor | ast.While)]
        for binding in after:
            shared = [loop for loop in loops if loop in set(self.names.ancestors(binding.node))]
            if shared and (
                stop is None
                or not any(
                    loop in set(self.names.ancestors(stop.node)) or loop is stop.node for loop in shared
                )
            ):
                reached.insert(0, binding)
        return reached

    def _replaces(self, later: Binding, earlier: Binding) -> bool:
        """Whether a binding always follows another one: a statement of its block, with no jump in between."""
        block = self.names.parents.get(later.node)
        if later.added or not isinstance(block, ast.If | ast.For | ast.While | ast.With):
            return False
        bodies: tuple[list[ast.AST], ...] = ([*block.body], [*getattr(block, "orelse", [])])
        for body in bodies:
            if {later.node, earlier.node} <= {*body}:
                between = body[body.index(earlier.node) : body.index(later.node)]
                return not any(isinstance(n, ast.Break | ast.Continue) for s in between for n in ast.walk(s))
        return False

    def _at_the_end(self, bindings: list[Binding]) -> list[Binding]:
        """Those that may be left when the scope has run to its end."""
        kept: list[Binding] = []
        for binding in sorted(bindings, key=lambda b: self.names.order.get(b.node, 0), reverse=True):
            kept.append(binding)
            parent = self.names.parents.get(self.names.statement_of(binding.node) or binding.node)
            if not binding.added and isinstance(parent, ast.Module | Function | ast.ClassDef):
                break
        return kept

    def _dominates(self, binding: Binding, node: ast.AST) -> bool:
        """Whether every path to the node passes the binding: its block is one around the node."""
        if binding.parameter:
            return True
        statement = self.names.statement_of(binding.node) or binding.node
        block = self.names.parents.get(statement)
        inside = {self.names.statement_of(node) or node, *self.names.ancestors(node)}
        if binding.node in inside:
            return isinstance(
                binding.node, ast.For | ast.AsyncFor | ast.comprehension | ast.With | ast.withitem
            )
        if block is None or (block not in inside and not isinstance(block, ast.Module)):
            return isinstance(block, ast.With) and binding.node is block
        for name in ("body", "orelse", "finalbody", "handlers"):
            part = getattr(block, name, None)
            if isinstance(part, list) and statement in part:
                return any(other in inside for other in part)
        return True
