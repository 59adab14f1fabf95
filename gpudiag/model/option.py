"""What a field of a plan may hold, and its flag: declared once, beside the field.

The command's options and help, the flags that ask for a plan, its refusals and its JSON Schema follow from
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from gpudiag.errors import UsageError
from gpudiag.model.nearest import did_you_mean

ALL = "all"
MIN_DEADLINE_SECONDS, MAX_DEADLINE_SECONDS = 0.1, 600.0  # of --deadline, wherever it stands


@dataclass(frozen=True, slots=True)
class Option:
    """How one field is asked for on a command line, and its limits everywhere."""

    flag: str
    help: str
    metavar: str
    choices: tuple[str, ...] = ()
    what: str = ""  # one of the choices is, with its article: `an operation`
    all_means: tuple[str, ...] | None = None  # what the word `all` means; None: `all` is not allowed
    low: float | None = None
    high: float | None = None
    is_size: bool = False  # bytes, which people write as 64M
    is_repeated: bool = False  # one flag for each name, not a list with commas
    default: str = ""  # the default in words, where the value does not show it


def option(
    default: Any,
    flag: str,
    text: str,
    metavar: str = "",
    *,
    between: tuple[float, float] | None = None,
    default_words: str = "",
    **limits: Any,
) -> Any:
    """A dataclass field with that default, which `flag` asks for; `limits` are fields of `Option`."""
    low, high = between or (None, None)
    declared = Option(flag, text, metavar, low=low, high=high, default=default_words, **limits)
    return field(default=default, metadata={Option.__name__: declared})


@dataclass(frozen=True, slots=True)
class PlanField:
    """A field of a plan: its type taken apart, its default, and its option."""

    name: str
    value_type: type  # str, int, float or bool; of each name where there are several
    is_list: bool
    is_optional: bool  # None: gpudiag decides
    default: Any
    option: Option


def plan_fields(plan_type: type) -> tuple[PlanField, ...]:
    """Every field of that plan, in the order of its flags in the command's help."""
    hints = get_type_hints(plan_type)
    return tuple(
        PlanField(
            name=one.name,
            value_type=_value_type(hints[one.name]),
            is_list=get_origin(hints[one.name]) is tuple,
            is_optional=type(None) in get_args(hints[one.name]),
            default=one.default,
            option=one.metadata[Option.__name__],
        )
        for one in fields(plan_type)
    )


@dataclass(frozen=True, slots=True)
class Preset:
    """A plan that people want often, by a name: the fields that are not as by default."""

    name: str
    means: str  # in one line
    fields: Mapping[str, Any]


class Plan:
    """What a run is asked to do: a frozen dataclass, each of whose fields is an `option`."""

    __slots__ = ()
    PRESETS: ClassVar[tuple[Preset, ...]] = ()

    def require_options(self) -> None:
        """Check that every field is what its option allows.

        Raises:
            UsageError: one is not; the first in flag order is named.
        """
        for one in plan_fields(type(self)):
            value = getattr(self, one.name)
            if value is not None:
                _require(value, one)

    def to_argv(self) -> tuple[str, ...]:
        """The flags that ask for this plan; what equals the default is left out."""
        argv: list[str] = []
        for one in plan_fields(type(self)):
            value, flag = getattr(self, one.name), one.option.flag
            if value == one.default:
                continue
            if value is True:
                argv.append(flag)
            elif one.option.is_repeated:
                argv += [word for name in value for word in (flag, name)]
            else:
                argv += [flag, ",".join(value) if one.is_list else str(value)]
        return tuple(argv)


def require_known(value: str, known: Sequence[str], what: str) -> None:
    """Check that `value` is one of `known`.

    Raises:
        UsageError: it is not; the hint gives the nearest known name, or all of them.
    """
    if value in known:
        return
    hint = did_you_mean(value, known) or f"choose from {', '.join(known)}"
    raise UsageError(f"{value!r} is not {what} that gpudiag knows", hint=hint)


def require_between(value: float, low: float, high: float, flag: str) -> None:
    """Check that `value` lies between `low` and `high`.

    Raises:
        UsageError: it does not; the message names the flag and its bounds.
    """
    if not low <= value <= high:  # false for nan too
        raise UsageError(f"{flag} {_plain(value)} is out of range", hint=f"{_plain(low)} to {_plain(high)}")


def _require(value: Any, one: PlanField) -> None:
    asked = one.option
    if one.is_list:
        _require_names(value, one)
    elif asked.choices:
        require_known(value, asked.choices, asked.what)
    if asked.low is not None and asked.high is not None:
        require_between(value, asked.low, asked.high, asked.flag)


def _require_names(values: tuple[str, ...], one: PlanField) -> None:
    asked = one.option
    if not values and one.default:
        raise UsageError(f"{asked.flag} names nothing", hint=f"choose from {', '.join(asked.choices)}")
    if asked.choices and values != asked.all_means:
        for value in values:
            require_known(value, asked.choices, asked.what)
    if not asked.is_repeated and len(set(values)) < len(values):
        raise UsageError(f"{asked.flag} {','.join(values)} names one of them twice", hint="name each once")


def _value_type(hint: Any) -> type:
    members = [member for member in get_args(hint) if member not in (type(None), Ellipsis)]
    found: type = members[0] if members else hint
    return found


def _plain(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
