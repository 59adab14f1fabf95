"""A command's options that follow from its plan, and the plan that a command line asks for."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from gpudiag.cli.completion import Completer, offer, offer_list
from gpudiag.cli.options import Seconds
from gpudiag.errors import UsageError
from gpudiag.model.option import ALL, Plan, PlanField, plan_fields, require_known
from gpudiag.units import parse_size_bytes

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Plan = TypeVar("_Plan", bound=Plan)


def plan_options(
    plan_type: type[Plan], offered: Mapping[str, Completer] | None = None
) -> Callable[[_Command], _Command]:
    """A decorator that gives a command an option for each field of the plan; `offered`: words for a shell."""

    def decorate(command: _Command) -> _Command:
        for one in reversed(plan_fields(plan_type)):
            command = _click_option(one, (offered or {}).get(one.name))(command)
        return command

    return decorate


def plan_from(plan_type: type[_Plan], options: dict[str, Any]) -> _Plan:
    """The plan that the options ask for, with its defaults. Raises UsageError: it cannot be run."""
    given = {one.name: options[one.name] for one in plan_fields(plan_type)}
    return plan_type(**{name: value for name, value in given.items() if value is not None})


def _click_option(one: PlanField, offered: Completer | None) -> Callable[[_Command], _Command]:
    asked = one.option
    settings: dict[str, Any] = {"help": _help(one), "metavar": asked.metavar}
    if one.value_type is bool:
        settings = {"help": _help(one), "is_flag": True}
    elif asked.is_repeated:
        settings["multiple"] = True
    elif one.is_list:
        settings["default"] = ",".join(one.default) or None
        settings["callback"] = lambda _context, _parameter, text: _split(text, one)
    elif asked.is_size:
        settings["default"] = "auto" if one.default is None else str(one.default)
        settings["callback"] = lambda _context, _parameter, text: _size(text, asked.flag)
    else:
        is_time = asked.metavar == "SECONDS"
        settings["default"], settings["type"] = one.default, Seconds() if is_time else one.value_type
    if offered is None and asked.choices:
        many = one.is_list and not asked.is_repeated
        words = asked.choices if asked.all_means is None else (*asked.choices, ALL)
        offered = offer_list(words) if many else offer(asked.choices)
    return click.option(asked.flag, one.name, shell_complete=offered, **settings)


def _help(one: PlanField) -> str:
    default = one.option.default or _in_words(one.default)
    return f"{one.option.help}  [default: {default}]".lstrip() if default else one.option.help


def _in_words(default: Any) -> str:
    if default is None or default is False:
        return ""
    if isinstance(default, tuple):
        return ",".join(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def _split(text: str | None, one: PlanField) -> tuple[str, ...] | None:
    """The names of a comma-separated list, each once; None where none was given."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        known = f"choose from {', '.join(one.option.choices)}" if one.option.choices else "see --help"
        raise UsageError(f"{one.option.flag} names nothing", hint=known)
    if one.option.all_means is not None and ALL in names:
        for name in names:
            require_known(name, (*one.option.choices, ALL), one.option.what)
        return one.option.all_means
    return names


def _size(text: str | None, flag: str) -> int | None:
    """A size such as 64M in bytes; None (gpudiag decides) for `auto` or nothing."""
    if text in (None, "auto"):
        return None
    try:
        return parse_size_bytes(str(text))
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}", hint=error.hint) from None
