"""What happens to each attribute of each event, as generated code: the rest of enforcement runs once an event.

The code holds no text from outside: names, ids and tests are handed to it, and it calls them by numbers.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import CodeType
from typing import Any, Final, TypeAlias

from penstock.errors import MalformedError
from penstock.model.types import Attribute
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind, Scalar, Value, checked_value, quick_test

Values: TypeAlias = Mapping[str, Scalar]

Show: TypeAlias = Callable[[Values, dict[str, Scalar]], None]
"""Copies values that stand under attribute ids to where they are shown, under names."""

State: TypeAlias = Callable[[Values], dict[Any, Scalar]]
"""Returns values that stand under names, by attribute id, which is text too, and without nulls."""

# The same questions as `quick_test` asks, written out: a call costs more than most of them.
_TESTS: Final = {
    Kind.STRING: "value.__class__ is str and value.isascii()",
    Kind.INTEGER: f"value.__class__ is int and {INTEGER_MIN} <= value <= {INTEGER_MAX}",
    Kind.FLOAT: "value.__class__ is float",
    Kind.BOOLEAN: "value.__class__ is bool",
    Kind.TIMESTAMP: "value.__class__ is datetime and value.tzinfo is UTC",
}


def shower(attributes: Iterable[Attribute]) -> Show:
    """Return the function that shows attributes.

    A value that does not fit becomes null: its UID was reused against the rules, or a broker on the way was careless.
    """
    lines = ["def show(values, shown):", " get = values.get"]
    known: dict[str, Any] = {}
    for number, attribute in enumerate(attributes):
        test = _bind(known, number, attribute, _mended)
        lines += [
            f" value = get(id{number})",
            " if value is not None:",
            f"  shown[name{number}] = value if {test} else mended{number}(value)",
        ]
    return _compiled(lines, known)  # type: ignore[no-any-return]  # the function above


def stater(attributes: Iterable[Attribute], passed: Callable[[Attribute], bool] = lambda _attribute: True) -> State:
    """Return the function that takes what a publisher states of attributes, and passes on those that may pass.

    It raises `MalformedError` (`value.*`) for a value that does not fit, whether it may pass or not.
    """
    lines = ["def state(values):", " get = values.get", " stated = {}"]
    known: dict[str, Any] = {}
    for number, attribute in enumerate(attributes):
        test = _bind(known, number, attribute, _checked)
        lines += [f" value = get(name{number})", " if value is not None:"]
        if passed(attribute):
            lines.append(f"  stated[id{number}] = value if {test} else mended{number}(value)")
        else:
            lines.append(f"  {test} or mended{number}(value)")
    return _compiled([*lines, " return stated"], known)  # type: ignore[no-any-return]  # the function above


def _bind(
    known: dict[str, Any], number: int, attribute: Attribute, mend: Callable[[Attribute], Callable[[Value], Scalar]]
) -> str:
    known[f"id{number}"] = attribute.id
    known[f"name{number}"] = attribute.name
    known[f"mended{number}"] = mend(attribute)
    if attribute.spec.domain is None:
        return _TESTS[attribute.spec.kind]
    known[f"fits{number}"] = quick_test(attribute.spec)
    return f"fits{number}(value)"


def _compiled(lines: list[str], known: dict[str, Any]) -> Any:
    # Arguments with defaults are found sooner than global names.
    head, *body = lines
    bound = ", ".join(f"{name}={name}" for name in (*known, "datetime", "UTC"))
    source = "\n".join((f"{head[:-2]}, {bound}):", *body))
    made: dict[str, Any] = {**known, "datetime": datetime, "UTC": UTC}
    exec(_code(source), made)  # noqa: S102  # the source holds numbers only
    return made[head[4 : head.index("(")]]


@lru_cache(maxsize=1_024)
def _code(source: str) -> CodeType:
    # Types that have as many attributes of the same kinds share it.
    return compile(source, "<columns>", "exec")


def _checked(attribute: Attribute) -> Callable[[Value], Scalar]:
    return lambda value: checked_value(attribute.name, attribute.spec, value)


def _mended(attribute: Attribute) -> Callable[[Value], Scalar]:
    def mended(value: Value) -> Scalar:
        try:
            return checked_value(attribute.name, attribute.spec, value)
        except MalformedError:
            return None

    return mended
