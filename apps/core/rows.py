"""Many rows by one statement, from columns of values: for what a loop reads and writes by the hundred.

Knows no row's meaning; whoever owns the rows calls it. `save()`, signals and constraints' messages are passed
by, so defaults of the fields are all that is filled in.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connection
from django.db.models import Field, IntegerField, Lookup, Model

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
    return f"{{{','.join('NULL' if number is None else str(number) for number in numbers)}}}"


def is_whole(field: "Field[Any, Any]") -> bool:
    """Whether its column holds whole numbers, as those of foreign keys do."""
    return isinstance(getattr(field, "target_field", field), IntegerField)


def prepared(field: "Field[Any, Any]", values: Iterable[Any]) -> list[Any]:
    """Values as the database takes them of this field. What follows itself is prepared once, whole numbers
    are ready."""
    if is_whole(field):
        return [value if value is None else int(value) for value in values]
    found: list[Any] = []
    last: Any = found  # no value is this list
    ready: Any = None
    for value in values:
        if value is not last:
            last, ready = value, field.get_db_prep_save(value, connection)
        found.append(ready)
    return found


def table_of(
    fields: Sequence["Field[Any, Any]"], columns: Sequence[list[Any]], name: str
) -> tuple[str, list[Any]]:
    """Columns of prepared values as a table `name (column1, column2, ...)` to select from, and its
    parameters.

    PostgreSQL gets a list a column: thousands of single parameters cost more than what is done with them.
    """
    if connection.vendor == "postgresql":
        lists = ", ".join(f"CAST(%s AS {field.cast_db_type(connection)}[])" for field in fields)
        names = ", ".join(f"column{place}" for place, _ in enumerate(fields, start=1))
        params = [
            array_of(values) if is_whole(field) else values
            for field, values in zip(fields, columns, strict=True)
        ]
        return f"UNNEST({lists}) AS {name} ({names})", params
    marks = ", ".join(["%s"] * len(fields))
    rows = ", ".join([f"({marks})"] * len(columns[0]))
    return f"(VALUES {rows}) AS {name}", [value for row in zip(*columns, strict=True) for value in row]


def insert_columns(model: type[Model], columns: Mapping[str, Any], count: int) -> list[int]:
    """Insert `count` rows; answers their ids in this order. Each column, by its attribute's name, is a list
    of values, or one value for all of them; what is not named has its field's default.

    Raises IntegrityError as any insert does. Call inside a transaction.
    """
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    each = [field for field in fields if isinstance(columns.get(field.attname), list)]
    fixed = [field for field in fields if field not in each]
    lists = [prepared(field, columns[field.attname]) for field in each]
    same = [
        field.get_db_prep_save(columns.get(field.attname, field.get_default()), connection) for field in fixed
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
        source, params = table_of(each, [values[start : start + size] for values in lists], "fresh")
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {quote(model._meta.db_table)} ({names}) "  # noqa: S608 - names only
                f"SELECT {', '.join(chosen)} FROM {source} RETURNING {quote(str(model._meta.pk.column))}",
                [*same, *params],
            )
            ids += [row[0] for row in cursor.fetchall()]
    return ids
