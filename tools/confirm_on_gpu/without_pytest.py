"""Run tests/gpu where there is no pytest: FOLDER_OF_TESTS RESULT.xml, the result as pytest's own --junitxml.

It has the few things of pytest that those tests use, and nothing else: a test that uses more is an error
here.
"""

import importlib.util
import inspect
import sys
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree


class SkippedTest(Exception):
    """A test that cannot run here, with the reason."""


class Approximation:
    """Equal to numbers within a millionth, as `pytest.approx`."""

    def __init__(self, value: float) -> None:
        """Approximate `value`."""
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Whether the other number is near enough."""
        return isinstance(other, int | float) and abs(other - self.value) <= 1e-6 * max(abs(self.value), 1e-6)

    __hash__ = None  # type: ignore[assignment]


class AnyMark:
    """Takes whatever marks tests carry."""

    def __getattr__(self, name: str) -> Any:
        """A mark of that name, with or without arguments."""
        return lambda *_, **__: None


def make_pytest() -> types.ModuleType:
    """The module that the tests import as pytest."""
    module = types.ModuleType("pytest")

    def fixture(call: Callable[..., Any] | None = None, *, scope: str = "function") -> Any:
        if call is None:
            return lambda function: fixture(function, scope=scope)
        # Functions take attributes; mypy does not know this one.
        setattr(call, "is_fixture", True)  # noqa: B010
        return call

    def skip(reason: str) -> None:
        raise SkippedTest(reason)

    vars(module).update(fixture=fixture, skip=skip, approx=Approximation, mark=AnyMark())
    return module


def run_module(path: Path, suite: ElementTree.Element) -> None:
    """Run every test of the file, and write a case for each."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, Any] = {}
    for name, test in vars(module).items():
        if name.startswith("test_"):
            _run_test(test, vars(module), made, suite)


def _run_test(
    test: Callable[..., Any], names: dict[str, Any], made: dict[str, Any], suite: ElementTree.Element
) -> None:
    started = time.monotonic()
    case = ElementTree.SubElement(suite, "testcase", classname=test.__module__, name=test.__name__)
    try:
        test(*(_value_of(wanted, names, made) for wanted in inspect.signature(test).parameters))
    except SkippedTest as skipped:
        ElementTree.SubElement(case, "skipped", message=str(skipped))
    except AssertionError as error:
        ElementTree.SubElement(case, "failure", message=str(error) or _line_of(error))
    except Exception as error:  # noqa: BLE001 - one test costs only itself
        ElementTree.SubElement(case, "error", message=f"{type(error).__name__}: {error}")
    case.set("time", f"{time.monotonic() - started:.3f}")


def _line_of(error: AssertionError) -> str:
    """The assertion as it stands in the test: without pytest it has no words of its own."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"line {line.lineno}: {line.line}"


def _value_of(name: str, names: dict[str, Any], made: dict[str, Any]) -> Any:
    """The value of a fixture, made once for all tests of its file; its skip is every test's."""
    if name not in made:
        call = names.get(name)
        if call is None or not getattr(call, "is_fixture", False):
            raise LookupError(f"there is no fixture {name!r} without pytest")
        try:
            made[name] = call()
        except SkippedTest as skipped:
            made[name] = skipped
    if isinstance(made[name], SkippedTest):
        raise made[name]
    return made[name]


def main() -> int:
    """Run all files; 0 where no test failed, 1 where one did."""
    folder, result = map(Path, sys.argv[1:])
    sys.modules["pytest"] = make_pytest()
    suite = ElementTree.Element("testsuite")
    for path in sorted(folder.glob("test_*.py")):
        run_module(path, suite)
        ElementTree.ElementTree(suite).write(result)
    failed = [case for case in suite if case.find("failure") is not None or case.find("error") is not None]
    for case in failed:
        print(f"{case.get('name')}: {case[0].get('message')}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
