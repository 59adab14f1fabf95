"""Writes docs/schemas: the JSON Schema of every document, a copy that a test compares."""

import json
from pathlib import Path

from gpudiag.model.documents import DOCUMENTS, json_schema, noun_schema
from tools.confirm_on_gpu.report import Confirmation

DIRECTORY = Path(__file__).parents[1] / "docs" / "schemas"


def schema_path(schema: str) -> Path:
    """Where the schema of that name lies: `gpudiag.snapshot/1` is gpudiag.snapshot-1.json."""
    return DIRECTORY / f"{schema.replace('/', '-')}.json"


def schema_text(schema: str) -> str:
    """The schema of that name as the file holds it."""
    made = noun_schema(Confirmation) if schema == Confirmation.SCHEMA else json_schema(schema)
    return json.dumps(made, indent=1) + "\n"


def main() -> None:
    """Write one file per document."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for schema in (*DOCUMENTS, Confirmation.SCHEMA):
        schema_path(schema).write_text(schema_text(schema))


if __name__ == "__main__":
    main()
