import json
from pathlib import Path

import click

from gpudiag.cli.commands import COMMANDS, gpudiag
from tests.meta.command_tree import read_command_tree

FROZEN = Path(__file__).with_name("command_tree.json")


def test_no_flag_appears_disappears_or_changes_unnoticed() -> None:
    assert read_command_tree() == json.loads(FROZEN.read_text())


def test_every_command_says_in_its_help_what_each_flag_does() -> None:
    context = click.Context(gpudiag, info_name="gpudiag", **gpudiag.context_settings)
    for name in COMMANDS:
        command = gpudiag.get_command(context, name)
        assert command is not None
        assert command.help
        silent = [
            parameter.opts
            for parameter in command.params
            if isinstance(parameter, click.Option) and not parameter.help
        ]
        assert silent == [], name
