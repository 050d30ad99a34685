"""Values and names in the text of a statement of DuckDB: whatever is not a parameter goes through here. Pure."""

import re

from holdfast.catalog.errors import FormatError


def literal(text: str) -> str:
    """The text as a string of SQL."""
    return "'" + _without_nul(text).replace("'", "''") + "'"


def identifier(name: str) -> str:
    """The name, the whole of it, as that of a column or a table."""
    return '"' + _without_nul(name).replace('"', '""') + '"'


def unpatterned(path: str) -> str:
    """The pattern of paths that only this one fits."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def _without_nul(text: str) -> str:
    """Raises FormatError: at a NUL DuckDB would take the statement for ended."""
    if "\0" in text:
        msg = f"{text[:100]!r} has a NUL, which no statement of DuckDB can name: read it with Spark"
        raise FormatError(msg)
    return text
