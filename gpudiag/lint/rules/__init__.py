"""The rules: each file is one, and its name is the rule's; `examples` has the scripts that show them."""

from importlib import import_module
from pkgutil import iter_modules

from gpudiag.lint.rule import Rule

RULES: tuple[Rule, ...] = tuple(
    import_module(f"{__name__}.{module.name}").RULE for module in iter_modules(__path__)
)
BY_CODE = {rule.code: rule for rule in RULES}
