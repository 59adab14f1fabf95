"""The catalogue of findings: a code has one entry, and an entry is reported by a check or a command."""

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace

import pytest

import gpudiag.checks
from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import describe_limits, each_once, finding_kinds
from gpudiag.checks.registry import FindingKind
from tests.walking import walk

KINDS = finding_kinds()


def defined() -> Iterable[tuple[str, FindingKind]]:
    """Every entry that a module of the checks has, also in its tuples and mappings."""
    for found in pkgutil.walk_packages(gpudiag.checks.__path__, f"{gpudiag.checks.__name__}."):
        for name, value in vars(importlib.import_module(found.name)).items():
            members = (
                value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
            )
            yield from ((f"{found.name}.{name}", one) for one in members if isinstance(one, FindingKind))


def test_a_second_entry_for_a_code_is_refused():
    again = replace(KINDS[0], meaning="Something else.")
    with pytest.raises(ValueError, match=KINDS[0].code):
        each_once((*KINDS, again))
    with pytest.raises(ValueError, match=KINDS[0].code):
        each_once((*KINDS, replace(KINDS[0])))  # alike is twice, too: one of them would be changed alone
    assert each_once((*KINDS, KINDS[0])) == KINDS


def test_no_entry_is_dead():
    reported = set(map(id, KINDS))
    assert [place for place, kind in defined() if id(kind) not in reported] == []
    assert {kind.code for _, kind in defined()} == {kind.code for kind in KINDS}


@walk(KINDS, lambda kind: kind.code)
def test_an_entry_says_what_it_is_judged_by(kind: FindingKind):
    basis = kind.basis
    assert basis.reads
    assert basis.limit
    assert basis.look_also
    assert len(set(basis.look_also)) == len(basis.look_also)
    assert kind.code not in basis.look_also


def test_a_check_tells_its_limits_in_short():
    assert max(len(describe_limits(check)) for check in BUILTIN) < 800
