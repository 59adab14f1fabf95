"""The command tree as data: every command's flags, their types and defaults. Flags are a contract.

To accept a change of the contract: `python -m tests.meta.command_tree > tests/meta/command_tree.json`
"""

import json
from typing import Any

import click

from gpudiag.cli.commands import COMMANDS, gpudiag


def read_command_tree() -> dict[str, list[dict[str, Any]]]:
    """Every command's parameters by the command's name; `gpudiag` is the group itself."""
    context = click.Context(gpudiag, info_name="gpudiag", **gpudiag.context_settings)
    tree = {"gpudiag": _parameters(gpudiag, context)}
    for name in COMMANDS:
        command = gpudiag.get_command(context, name)
        assert command is not None
        own = click.Context(command, parent=context, info_name=name, **command.context_settings)
        tree[name] = _parameters(command, own)
    return tree


def _parameters(command: click.Command, context: click.Context) -> list[dict[str, Any]]:
    return [_describe(parameter) for parameter in command.get_params(context)]


def _describe(parameter: click.Parameter) -> dict[str, Any]:
    kind = parameter.type
    choices = {"choices": list(kind.choices)} if isinstance(kind, click.Choice) else {}
    default = parameter.default if isinstance(parameter.default, str | int | float | bool) else None
    return {
        "names": [*parameter.opts, *parameter.secondary_opts],
        "is_flag": bool(getattr(parameter, "is_flag", False)),
        "multiple": bool(getattr(parameter, "multiple", False)),
        "default": default,
        **choices,
    }


if __name__ == "__main__":
    print(json.dumps(read_command_tree(), indent=1))
