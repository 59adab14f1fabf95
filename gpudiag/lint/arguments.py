"""The arguments of calls of this script's functions, of `add_argument`, and of configurations."""

import ast

from gpudiag.lint import vocabulary as known
from gpudiag.lint.names import Function, Names


def argument_of(function: Function, name: str, call: ast.Call) -> ast.expr | None:
    """The expression that a call gives to a parameter; None where it gives none, or by a star."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if name not in names:
        return None
    bound = names[:1] in (["self"], ["cls"])
    place = names.index(name) - bound
    if 0 <= place < len(call.args) and not any(
        isinstance(argument, ast.Starred) for argument in call.args[: place + 1]
    ):
        return call.args[place]
    return None


def default_of(function: Function, name: str) -> ast.expr | None:
    """The default of a parameter; None where it has none."""
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = function.args.defaults
    for argument, default in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
        if argument.arg == name:
            return default
    for argument, keyword_default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if argument.arg == name:
            return keyword_default
    return None


def argument_name(call: ast.Call) -> str:
    """The name under which a declared argument is found: its `dest`, or its first long flag."""
    for keyword in call.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    long = [flag for flag in flags if flag.startswith("--")] or flags
    return long[0].lstrip("-").replace("-", "_") if long else ""


def declared_arguments(names: Names) -> dict[str, ast.Call]:
    """The calls of `add_argument`, by the name that the argument gets."""
    return {
        argument_name(call): call
        for call in names.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and call.args
    }


def key_of_configuration(node: ast.AST) -> str:
    """The name of a configuration's value: of `cfg.stages` and of `cfg["stages"]`; empty of all else."""
    outer = node.value if isinstance(node, ast.Attribute | ast.Subscript) else None
    if isinstance(outer, ast.Subscript):
        outer = outer.value  # `cfg["parallel"]["stages"]`
    holder = outer.id if isinstance(outer, ast.Name) else getattr(outer, "attr", "")
    if not known.CONFIGURATION.fullmatch(holder):
        return ""
    if isinstance(node, ast.Attribute):
        return node.attr
    key = node.slice if isinstance(node, ast.Subscript) else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
