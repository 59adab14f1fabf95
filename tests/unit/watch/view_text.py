"""A picture of `gpudiag watch` as text, without a terminal."""

from gpudiag.watch.view import Line, Table, View, text_of


def lines_of(table: Table) -> tuple[Line, ...]:
    """The lines of a table's rows."""
    return tuple(line for row in table.rows for line in row.lines)


def render_view(view: View) -> str:
    """The whole picture as text, each table under its heading."""
    tables = [table for table in (view.hosts, view.gpus, view.findings, view.processes) if table is not None]
    parts = [*view.header]
    for table in tables:
        parts += [table.heading, *lines_of(table)]
    return "\n".join(text_of(line).rstrip() for line in (*parts, view.footer)) + "\n"
