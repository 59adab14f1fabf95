"""Writes docs/schemas, each document's JSON Schema, and docs/documents.md; a test compares both."""

import json
from pathlib import Path

from gpudiag.model.documents import DOCUMENTS, json_schema, noun_schema
from tools.confirm_on_gpu.report import AnonymousConfirmation, Confirmation

DIRECTORY = Path(__file__).parents[1] / "docs" / "schemas"
PAGE = DIRECTORY.parent / "documents.md"
# Those of a tool beside the product.
_OF_TOOLS: dict[str, type] = {noun.SCHEMA: noun for noun in (Confirmation, AnonymousConfirmation)}
_HEAD = """\
# JSON documents

`--json` prints one document and nothing else; `--output FILE` writes the same document to a file.
`gpudiag serve` answers with the same documents ([api.md](api.md)). Each begins with `schema`. A missing
reading is `null`, with its reason under `missing.<field>`. Times are UTC with milliseconds and `Z`; units
are in the names of fields. A reader ignores fields that it does not know: a schema gets new fields without
a new number. A finding's subject may have a new `kind` too: a reader that does not know it goes by `host`.

Written by `python tools/write_schemas.py` from `gpudiag/model`.

| document | what it holds |
| --- | --- |
"""


def schema_path(schema: str) -> Path:
    """Where the schema of that name lies: `gpudiag.snapshot/1` is gpudiag.snapshot-1.json."""
    return DIRECTORY / f"{schema.replace('/', '-')}.json"


def schema_text(schema: str) -> str:
    """The schema of that name as the file holds it."""
    made = noun_schema(_OF_TOOLS[schema]) if schema in _OF_TOOLS else json_schema(schema)
    return json.dumps(made, indent=1) + "\n"


def page_text() -> str:
    """The page that lists the documents, each with the first line about its noun."""
    rows = []
    for schema, noun in {**DOCUMENTS, **_OF_TOOLS}.items():
        line = (noun.__doc__ or "").splitlines()[0].removeprefix(f"`{schema}`: ")
        rows.append(f"| [`{schema}`](schemas/{schema_path(schema).name}) | {line[0].upper()}{line[1:]} |\n")
    return _HEAD + "".join(sorted(rows))


def main() -> None:
    """Write one file per document, and the page."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for schema in (*DOCUMENTS, *_OF_TOOLS):
        schema_path(schema).write_text(schema_text(schema))
    PAGE.write_text(page_text())


if __name__ == "__main__":
    main()
