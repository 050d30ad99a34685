"""Texts that people give and that terminals show. Pure."""

import re

from holdfast.catalog.errors import UsageError

LONGEST_LINE = 2_000

_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """The text with every character that a terminal would act on (escapes, ends of lines, turns of direction) in Python's notation."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def require_line(given: object, what: str) -> None:
    """Raises UsageError for what cannot be a note or a reason (`what` says which): others read it on their terminals.

    Spaces and joiners of any language are text. Controls, ends of lines, halves of characters and turns of direction are not.
    """
    if not isinstance(given, str) or _NOT_TEXT.search(given) or len(given) > LONGEST_LINE:
        shown = f"{given[:60]!r}..." if isinstance(given, str) and len(given) > LONGEST_LINE else f"{given!r}"
        msg = f"{shown} cannot be {what}: give one line of printable characters, {LONGEST_LINE} at most"
        raise UsageError(msg)
