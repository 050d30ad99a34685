"""The schema of a state of rows, as a manifest has it (Spark's JSON), read by a strict grammar. Pure.

A manifest may come from anywhere, and engines do much with a schema: a user-defined type imports a module and calls it, the text of a
type is a part of a statement, a default is SQL. So nothing of it is handed on that is not a word of this grammar, a name, or a note of
the user's.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

# What a state can hold, by the words of Spark's JSON.
PLAIN_TYPES = frozenset(
    {"string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp", "timestamp_ntz"}
)
MAX_PRECISION = 38
MAX_DEPTH = 100

_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")
_UNITS = ("day", "hour", "minute", "second")
_INTERVALS = frozenset(
    {*(f"interval {unit}" for unit in _UNITS), *(f"interval {a} to {b}" for i, a in enumerate(_UNITS) for b in _UNITS[i + 1 :])}
)
_COLLATIONS = "__COLLATIONS"
_COLLATION = re.compile(r"(?:spark|icu)\.[A-Za-z0-9_]+")
# Notes that Spark acts on. Field ids find columns otherwise than by name, and need not be in a file. Defaults are SQL that it runs, and
# would be put into rows of before there was the column, where every other reader finds null. Texts of char(n) would be padded.
_ACTED_ON = re.compile(
    r"parquet\.field\.id|(CURRENT|EXISTS)_DEFAULT|GENERATION_EXPRESSION|generationExpression|identity\..*|delta\..*|__.*", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Plain:
    """A type that is a word: one of PLAIN_TYPES."""

    name: str


@dataclass(frozen=True, slots=True)
class Decimal:
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Of days to seconds; kept as a number of microseconds."""

    name: str


@dataclass(frozen=True, slots=True)
class Array:
    element: "Type"


@dataclass(frozen=True, slots=True)
class Map:
    key: "Type"
    value: "Type"


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple["Field", ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: "Type"


Type = Plain | Decimal | Interval | Array | Map | Struct


def parse_schema(text: str) -> Struct:
    """The columns of a state. Raises ValueError for what no state can have; says what."""
    return _struct(_loaded(text), "", 0)


def for_engine(text: str) -> dict[str, Any]:
    """The schema as JSON for Spark's own reader of it, without the notes that Spark acts on. Raises ValueError as `parse_schema`."""
    loaded = _loaded(text)
    _struct(loaded, "", 0)
    cleaned: dict[str, Any] = _without_acted_on(loaded)
    return cleaned


def _loaded(text: str) -> Any:
    try:
        loaded = json.loads(text)
        text.encode()
        json.dumps(loaded, ensure_ascii=False).encode()  # a lone surrogate, escaped
    except (ValueError, RecursionError) as error:
        msg = f"it is not JSON ({type(error).__name__})"
        raise ValueError(msg) from error
    return loaded


def _type(given: Any, where: str, depth: int) -> Type:
    if isinstance(given, str):
        return _word(given, where)
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "struct":
        return _struct(given, where, depth)
    if kind == "array":
        _require_keys(given, {"type", "elementType", "containsNull"}, where)
        return Array(_type(given["elementType"], f"{where}.element", _deeper(depth, where)))
    if kind == "map":
        _require_keys(given, {"type", "keyType", "valueType", "valueContainsNull"}, where)
        deeper = _deeper(depth, where)
        return Map(_type(given["keyType"], f"{where}.key", deeper), _type(given["valueType"], f"{where}.value", deeper))
    return _refuse(where, f"a type that a state cannot hold: {_shown(given if kind is None else kind)}")


def _word(given: str, where: str) -> Type:
    if given in PLAIN_TYPES:
        return Plain(given)
    if given in _INTERVALS:
        return Interval(given)
    if given == "decimal":
        return Decimal(10, 0)
    if (found := _DECIMAL.fullmatch(given)) and int(found[2]) <= int(found[1]) <= MAX_PRECISION and int(found[1]) > 0:
        return Decimal(int(found[1]), int(found[2]))
    return _refuse(where, f"a type that a state cannot hold: {_shown(given)}")


def _struct(given: Any, where: str, depth: int) -> Struct:
    if not isinstance(given, dict) or given.get("type") != "struct":
        _refuse(where, "not a struct")
    _require_keys(given, {"type", "fields"}, where)
    if not isinstance(given["fields"], list):
        _refuse(where, "a struct whose fields are not a list")
    deeper = _deeper(depth, where)
    fields = tuple(_field(each, where, deeper) for each in given["fields"])
    if where and not fields:
        _refuse(where, "a struct without fields, which Parquet does not have")
    if len({field.name.lower() for field in fields}) < len(fields):
        _refuse(where, "a struct with a field twice (case does not tell fields apart)")
    return Struct(fields)


def _field(given: Any, where: str, depth: int) -> Field:
    if not isinstance(given, dict) or not {"name", "type"} <= given.keys() <= {"name", "type", "nullable", "metadata"}:
        _refuse(where, "a field without a name and a type")
    name, notes = given["name"], given.get("metadata", {})
    if not isinstance(name, str) or not isinstance(given.get("nullable", True), bool) or not isinstance(notes, dict):
        _refuse(where, "a field whose name, nullable or metadata are not what they must be")
    inner = f"{where}.{name}" if where else name
    found = _type(given["type"], inner, depth)
    _require_collations(notes.get(_COLLATIONS, {}), {*_texts_in(found, name)}, inner)
    return Field(name, found)


def _require_collations(given: Any, texts: set[str], where: str) -> None:
    right = isinstance(given, Mapping) and given.keys() <= texts
    if not right or not all(isinstance(name, str) and _COLLATION.fullmatch(name) for name in given.values()):
        _refuse(where, "a collation of something that is not a text, or one that Spark does not have")


def _texts_in(found: Type, where: str) -> Iterator[str]:
    """The places of texts in a column, as Spark names them there; a struct names its own."""
    match found:
        case Plain("string"):
            yield where
        case Array(element):
            yield from _texts_in(element, f"{where}.element")
        case Map(key, value):
            yield from _texts_in(key, f"{where}.key")
            yield from _texts_in(value, f"{where}.value")


def _require_keys(given: Mapping[str, Any], wanted: set[str], where: str) -> None:
    if given.keys() != wanted or not all(isinstance(given[key], bool) for key in wanted if key.endswith("ontainsNull")):
        _refuse(where, f"a type with other parts than {', '.join(sorted(wanted))}")


def _deeper(depth: int, where: str) -> int:
    if depth >= MAX_DEPTH:
        _refuse(where.partition(".")[0], f"types within types, deeper than {MAX_DEPTH}")
    return depth + 1


def _without_acted_on(given: Any) -> Any:
    """The same schema; of the notes to its fields, those that are for people, and which order texts have."""
    if isinstance(given, list):
        return [_without_acted_on(item) for item in given]
    if not isinstance(given, dict):
        return given
    cleaned = {name: value if name in ("metadata", "name") else _without_acted_on(value) for name, value in given.items()}
    if "metadata" in given:
        cleaned["metadata"] = {
            name: dict(value) if name == _COLLATIONS else value
            for name, value in given["metadata"].items()
            if name == _COLLATIONS or not _ACTED_ON.fullmatch(name)
        }
    return cleaned


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(where: str, what: str) -> NoReturn:
    msg = f"column {_shown(where)} is {what}" if where else f"it is {what}"
    raise ValueError(msg)
