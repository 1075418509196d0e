"""LIKE on Spark: the forms that nearly all patterns have need no regular expression; a text may be a parameter."""

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.selector.ast import Like
from penstock.selector.like import parse_pattern


class Form(StrEnum):
    """What a pattern asks of a text."""

    IS = "is"
    STARTS = "starts"
    ENDS = "ends"
    CONTAINS = "contains"
    LIKE = "like"


@dataclass(frozen=True, slots=True)
class ParameterLike(Like):
    """A LIKE of which only the form is known: its `pattern` is the name of the parameter that holds the text."""

    form: Form = Form.LIKE


def form_of(pattern: str, escape: str | None) -> tuple[Form, str]:
    """Return the form of a pattern, and the text that goes with it; for `LIKE` it is a pattern in Spark's own form."""
    segments = parse_pattern(pattern, escape).segments
    if not any(None in segment for segment in segments):
        texts = ["".join(character for character in segment if character) for segment in segments]
        match texts:
            case [whole]:
                return Form.IS, whole
            case [first, ""]:
                return Form.STARTS, first
            case ["", last]:
                return Form.ENDS, last
            case ["", inner, ""]:
                return Form.CONTAINS, inner
    return Form.LIKE, "%".join("".join(_escaped(character) for character in segment) for segment in segments)


def matched(column: Column, form: Form, text: Column) -> Column:
    """Return where a text has a form."""
    match form:
        case Form.IS:
            return column == text
        case Form.STARTS:
            return column.startswith(text)
        case Form.ENDS:
            return column.endswith(text)
        case Form.CONTAINS:
            return column.contains(text)
        case Form.LIKE:
            return F.like(column, text)


def _escaped(character: str | None) -> str:
    if character is None:
        return "_"
    return f"\\{character}" if character in "%_\\" else character
