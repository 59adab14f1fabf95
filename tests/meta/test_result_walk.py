"""The walk of a collective's result, as docs/architecture.md lists it: its places and types are those of the
code.
"""

import importlib
import inspect
import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
_ITEM = re.compile(r"^\d+\. .*$", re.MULTILINE)
_PLACE = re.compile(r"`([\w/]+)\.py:(\w+)`")
_TYPE = re.compile(r"`([A-Z]\w+)`")
_MOST = 8


def _items() -> list[str]:
    _, _, after = _PAGE.read_text().partition("A collective's result goes from a timed buffer")
    return _ITEM.findall(after.partition("\nA command prints")[0])


def test_the_walk_has_eight_places_and_eight_types_at_most() -> None:
    items = _items()
    assert items
    assert len(items) <= _MOST
    assert all(_PLACE.search(item) and _TYPE.search(item) for item in items)
    assert len({name for item in items for name in _TYPE.findall(item)}) <= _MOST


def test_every_place_of_the_walk_is_there_and_makes_what_the_list_says() -> None:
    for item in _items():
        places = _PLACE.findall(item)
        modules = [importlib.import_module("gpudiag." + path.replace("/", ".")) for path, _ in places]
        for module, (_, name) in zip(modules, places, strict=True):
            assert getattr(module, name).__module__ == module.__name__, item
        for name in _TYPE.findall(item):
            assert inspect.isclass(getattr(modules[0], name, None)) or name in inspect.getsource(
                modules[0]
            ), item
