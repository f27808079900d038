"""Many rows by one statement, from columns of values: for what a loop reads and writes by the hundred.

Knows no row's meaning; whoever owns the rows calls it. `save()`, signals and constraints' messages are passed
by, so defaults of the fields are all that is filled in.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connection
from django.db.models import CharField, Field, IntegerField, JSONField, Lookup, Model, TextField

_VALUES = 30_000  # in one statement: SQLite takes 32,766


@Field.register_lookup
class Among(Lookup):
    """`pk__among=ids`: one of many numbers, as one parameter. `__in` sends one for each, and to write
    hundreds into a statement costs more than to answer it."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        left, params = self.process_lhs(compiler, connection)
        ids = [int(number) for number in self.rhs]
        if connection.vendor == "postgresql":
            return f"{left} = ANY(%s::bigint[])", [*params, array_of(ids)]
        return f"{left} IN (SELECT value FROM json_each(%s))", [*params, json.dumps(ids)]  # noqa: S608


def array_of(numbers: Iterable[int | None]) -> str:
    """Whole numbers as PostgreSQL writes an array: the driver would look at each one."""
    return f"{{{str([*numbers])[1:-1].replace('None', 'NULL')}}}"


def _array_of_texts(texts: Iterable[str | None]) -> str:
    return f"{{{','.join(map(_quoted, texts))}}}"


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    return '"' + text.replace('"', '\\"') + '"'


def is_whole(field: "Field[Any, Any]") -> bool:
    """Whether its column holds whole numbers, as those of foreign keys do."""
    return isinstance(getattr(field, "target_field", field), IntegerField)


def is_alike(column: list[Any]) -> bool:
    """Whether all values of a column are the same, so that it need be said once only."""
    return bool(column) and column.count(column[0]) == len(column)


def prepared(field: "Field[Any, Any]", values: list[Any]) -> list[Any]:
    """Values as `table_of` takes them of this field: whole numbers, texts (of JSON fields, too), or what the
    field itself makes of them. The same object is prepared once."""
    if is_whole(field):
        return [value if value is None else int(value) for value in values]
    ready: dict[int, Any] = {}
    for value in values:
        if id(value) not in ready:
            ready[id(value)] = _prepared(field, value)
    return [ready[id(value)] for value in values]


def _prepared(field: "Field[Any, Any]", value: Any) -> Any:
    if isinstance(field, JSONField) and value is not None:
        return json.dumps(value, cls=field.encoder)
    if type(field) is CharField and type(value) is str:
        return value
    return field.get_db_prep_save(value, connection)


def table_of(
    fields: Sequence["Field[Any, Any]"], columns: Sequence[list[Any]], name: str
) -> tuple[str, list[Any]]:
    """Columns of prepared values as a table `name (column1, column2, ...)` to select from, and its
    parameters.

    PostgreSQL gets an array a column, as one text: thousands of single parameters cost more than what is done
    with them, and the driver would look at each one.
    """
    if connection.vendor == "postgresql":
        lists = ", ".join(f"CAST(%s AS {field.cast_db_type(connection)}[])" for field in fields)
        names = ", ".join(f"column{place}" for place, _ in enumerate(fields, start=1))
        return f"UNNEST({lists}) AS {name} ({names})", [*map(_array, fields, columns)]
    marks = ", ".join(["%s"] * len(fields))
    rows = ", ".join([f"({marks})"] * len(columns[0]))
    return f"(VALUES {rows}) AS {name}", [value for row in zip(*columns, strict=True) for value in row]


def _array(field: "Field[Any, Any]", values: list[Any]) -> Any:
    if is_whole(field):
        return array_of(values)
    if isinstance(field, CharField | TextField | JSONField):
        return _array_of_texts(values)
    return values


def insert_columns(model: type[Model], columns: Mapping[str, Any], count: int) -> list[int]:
    """Insert `count` rows; answers their ids in this order. Each column, by its attribute's name, is a list
    of values, or one value for all of them; what is not named has its field's default.

    Raises IntegrityError as any insert does. Call inside a transaction.
    """
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    varied = {name: column for name, column in lists.items() if not is_alike(column)} or lists
    each = [field for field in fields if field.attname in varied]
    fixed = [field for field in fields if field.attname not in varied]
    given = {**columns, **{name: column[0] for name, column in lists.items() if name not in varied}}
    ready = [prepared(field, varied[field.attname]) for field in each]
    same = [
        field.get_db_prep_save(given.get(field.attname, field.get_default()), connection) for field in fixed
    ]
    quote = connection.ops.quote_name
    names = ", ".join(quote(str(field.column)) for field in (*each, *fixed))
    chosen = [f"fresh.column{place}" for place, _ in enumerate(each, start=1)]
    chosen += [f"CAST(%s AS {field.cast_db_type(connection)})" for field in fixed]
    if connection.vendor != "postgresql":
        chosen[len(each) :] = ["%s"] * len(fixed)
    ids: list[int] = []
    size = _VALUES // max(1, len(each))
    for start in range(0, count, size):
        source, params = table_of(each, [values[start : start + size] for values in ready], "fresh")
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {quote(model._meta.db_table)} ({names}) "  # noqa: S608 - names only
                f"SELECT {', '.join(chosen)} FROM {source} RETURNING {quote(str(model._meta.pk.column))}",
                [*same, *params],
            )
            ids += [row[0] for row in cursor.fetchall()]
    return ids
