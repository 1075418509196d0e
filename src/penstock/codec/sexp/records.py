"""Records: lists with a head and fields, which a dataclass describes once, for reading and for writing.

    @dataclass(frozen=True, slots=True)
    class Parcel(SexpRecord):
        HEAD: ClassVar = b"parcel"
        to: str
        weights: tuple[int, ...]
        fragile: bool = False
        note: str | None = None

describes `(parcel (to <text>) (weights <n> …) [(fragile)] [(note <text>)])`. Each attribute is a field of its name,
with `-` for `_`, in the order of the class or of its `ORDER`. The type describes the content of the field:

- `tuple[X, ...]` and `frozenset[X]`: any number of values, those of a set in their order;
- `bool = False`: nothing. The field is there if the value is true;
- `X | None = None`: one value. The field is not there if the value is None;
- `tuple[X, Y]`, as one of several values: a list of two;
- a record, or a union of records: one value, identified by its head;
- a `StrEnum`, and each type that the class has in its `FORMS`: one value.

`Annotated` describes exceptions: how the value is written (`Form`) or the whole content of the field (`ListForm`),
another name (`Named`), `OMITTED` for a field that is left out if it has its default, and `BARE` for values in the
record itself: one value, all that is left, or the fields of another record. With `RecordParts` another record is
written in the place of the value. Attributes that follow each other under one name are the values of one field.

Reading is strict: each field once, in its place, and nothing else. Whether a value was written in its one form is for
the caller to check, by writing again what was read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from dataclasses import field as dataclass_field
from enum import Enum, StrEnum, auto
from itertools import groupby
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from penstock.codec.sexp.canonical import SExp, field, head, text
from penstock.errors import MalformedError

T = TypeVar("T")
R = TypeVar("R", bound="SexpRecord")


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How a value is written as one S-expression, and read."""

    write: Callable[[T], SExp]
    read: Callable[[SExp], T]


@dataclass(frozen=True, slots=True)
class ListForm(Generic[T]):
    """How a value is written as the elements of a list, and read."""

    write: Callable[[T], tuple[SExp, ...]]
    read: Callable[[tuple[SExp, ...]], T]


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a field that is not called as its attribute."""

    name: bytes


@dataclass(frozen=True, slots=True)
class RecordParts(Generic[T]):
    """A value that is written as the fields of a record: how to convert it to the record and back."""

    record: "type[SexpRecord]"
    apart: Callable[[T], Any]
    together: Callable[[Any], T]


class FieldMark(Enum):
    """See `OMITTED` and `BARE` in the module."""

    OMITTED = auto()
    BARE = auto()


OMITTED: Final = FieldMark.OMITTED
BARE: Final = FieldMark.BARE


class SexpRecord:
    """The base of dataclasses that describe a record. See the module."""

    __slots__ = ()
    HEAD: ClassVar[bytes] = b""
    #: the attributes in the order of their fields; nothing where that is the order of the class
    ORDER: ClassVar[tuple[str, ...]] = ()
    #: how values of a type are written where an attribute says nothing else
    FORMS: ClassVar[Mapping[object, Form[Any]]] = {}

    @staticmethod
    def malformed(message: str) -> MalformedError:
        """Return the error for lists that are not such a record."""
        raise NotImplementedError(message)

    def to_sexp(self) -> SExp:
        """Return the record as it is written."""
        return (self.HEAD, *written_fields(self))

    @classmethod
    def from_sexp(cls, body: SExp) -> Self:
        """Read a record. Raises `MalformedError`: `sexp.duplicate`, as `malformed`, and errors of its forms."""
        return read_record(cls, body)

    def verify_fields(self) -> None:
        """Raise if a record that was read has fields that do not fit each other."""


def written_fields(record: SexpRecord) -> list[SExp]:
    """Return the fields of a record as they are written."""
    written: list[SExp] = []
    for each in _layout(type(record)):
        value, form = each.get(record), each.form
        if each.default is not _WRITTEN and value == each.default:
            continue
        if isinstance(form, Form):
            written.append((each.name, form.write(value)) if each.name else form.write(value))
        elif isinstance(form, ListForm):
            written += ((each.name, *form.write(value)),) if each.name else form.write(value)
        else:
            written += written_fields(form.apart(value))
    return written


def read_record(cls: type[R], body: SExp) -> R:
    """Read a record: the default of `from_sexp`."""
    if not isinstance(body, tuple) or head(body) != cls.HEAD:
        raise cls.malformed(f"not a `({cls.HEAD.decode()} …)`")
    record, rest = read_fields(cls, body)
    if rest:
        raise _misplaced(cls, body, None)
    return record


def read_fields(cls: type[R], body: tuple[SExp, ...]) -> tuple[R, tuple[SExp, ...]]:
    """Read a record's fields from the beginning of a list, and return the rest of the list. Raises as `from_sexp`."""
    record, end = _read(cls, body, 1, cls)
    return record, body[end:]


def _read(cls: type[R], body: tuple[SExp, ...], at: int, outer: type[SexpRecord]) -> tuple[R, int]:
    values: dict[str, Any] = {}
    for each in _layout(cls):
        form, found = each.form, body[at] if at < len(body) else None
        if isinstance(form, RecordParts):
            parts, at = _read(form.record, body, at, outer)
            values[each.attributes[0]] = form.together(parts)
            continue
        if each.name and type(found) is tuple and found and found[0] == each.name:
            elements, at = found[1:], at + 1
        elif (each.name or found is None) and each.default is not _WRITTEN:
            continue
        elif each.name:
            raise _misplaced(outer, body, each.name)
        else:
            elements = body[at : at + 1] if isinstance(form, Form) else body[at:]
            at += len(elements)
        if not isinstance(form, Form):
            value = form.read(elements)
        elif len(elements) == 1:
            value = form.read(elements[0])
        else:
            raise cls.malformed(f"`({each.name.decode()} …)` has one value")
        if len(each.attributes) == 1:
            values[each.attributes[0]] = value
        else:
            values |= zip(each.attributes, value, strict=True)
    record = cls(**values)
    record.verify_fields()
    return record, at


def _misplaced(cls: type[SexpRecord], body: tuple[SExp, ...], missing: bytes | None) -> MalformedError:
    """Return or raise the error for a list whose fields are not those of a record."""
    names = [*_names(cls)]
    there = {name for name in names if field(body, name) is not None}
    what = cls.HEAD.decode()
    if missing is not None and missing not in there:
        return cls.malformed(f"a `{what}` must have one `({missing.decode()} …)`")
    for element in body[1:]:
        if head(element) not in names:
            found = "a value" if (name := head(element)) is None else f"`({name.decode(errors='backslashreplace')} …)`"
            return cls.malformed(f"a `{what}` has no field like {found}")
    return cls.malformed(f"the fields of a `{what}` are {', '.join(map(bytes.decode, names))}, in this order")


# ----------------------------------------------------------------------------------------------------------------------
# The description of a class, computed at its first use.


#: the default of a field that is always there
_WRITTEN: Final = object()


@dataclass(frozen=True, slots=True)
class _Field:
    """A field, and the attributes that are its values. It has no name if it is bare."""

    attributes: tuple[str, ...]
    name: bytes
    form: Form[Any] | ListForm[Any] | RecordParts[Any]
    default: object = _WRITTEN
    get: Callable[[SexpRecord], Any] = dataclass_field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "get", attrgetter(*self.attributes))


_LAYOUTS: Final[dict[type[SexpRecord], tuple[_Field, ...]]] = {}


def _layout(cls: type[SexpRecord]) -> tuple[_Field, ...]:
    found = _LAYOUTS.get(cls)
    if found is None:
        found = _LAYOUTS[cls] = _describe_all(cls)
    return found


def _describe_all(cls: type[SexpRecord]) -> tuple[_Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    attributes = {each.name: each for each in fields(cls) if each.init}  # type: ignore[arg-type]  # a dataclass
    described = [_describe(cls, attributes[name], hints[name]) for name in cls.ORDER or attributes]
    groups = groupby(enumerate(described), key=lambda item: item[1].name or item[0])
    return tuple(_together(cls, [each for _, each in group]) for _, group in groups)


def _same(value: Any) -> Any:
    return value


def _names(cls: type[SexpRecord]) -> Iterator[bytes]:
    for each in _layout(cls):
        yield from _names(each.form.record) if isinstance(each.form, RecordParts) else filter(None, (each.name,))


def _together(cls: type[SexpRecord], group: list[_Field]) -> _Field:
    """Return one field for attributes that share one."""
    if len(group) == 1:
        return group[0]
    forms = [each.form for each in group if isinstance(each.form, Form)]
    return _Field(tuple(each.attributes[0] for each in group), group[0].name, _row(cls, forms))


def _describe(cls: type[SexpRecord], attribute: "Field[Any]", hint: Any) -> _Field:
    marks: list[object] = []
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
    name = attribute.name.replace("_", "-").encode()
    name = next((mark.name for mark in marks if isinstance(mark, Named)), name)
    form = next((mark for mark in marks if isinstance(mark, Form | ListForm | RecordParts)), None)
    omitted = OMITTED in marks
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint) and attribute.default is None:
        omitted = True
        hint = Union[tuple(each for each in get_args(hint) if each is not NoneType)]  # noqa: UP007  # computed
    origin, args = get_origin(hint), get_args(hint)
    if not isinstance(form, ListForm | RecordParts):
        if origin is frozenset or (origin is tuple and args[-1] is ...):
            form = _many(form or _value_form(cls, args[0]), frozenset if origin is frozenset else tuple)
        elif form is None and hint is bool:
            form, omitted = _flag(cls, name), True
        elif form is None and BARE in marks and isinstance(hint, type) and issubclass(hint, SexpRecord):
            form = RecordParts(hint, _same, _same)
        else:
            form = form or _value_form(cls, hint)
    default = attribute.default if omitted else _WRITTEN
    return _Field((attribute.name,), b"" if BARE in marks or isinstance(form, RecordParts) else name, form, default)


def _value_form(cls: type[SexpRecord], hint: Any) -> Form[Any]:
    """Return how a value of a type is written."""
    args = get_args(hint)
    match get_origin(hint):
        case None if hint in cls.FORMS:
            return cls.FORMS[hint]
        case None if issubclass(hint, StrEnum):
            return _word(cls, hint)
        case None if issubclass(hint, SexpRecord):
            return Form(hint.to_sexp, hint.from_sexp)
        case origin if origin is Annotated:
            return next(mark for mark in args[1:] if isinstance(mark, Form))
        case origin if origin is tuple:
            row = _row(cls, [_value_form(cls, arg) for arg in args])
            return Form(row.write, lambda value: row.read(value if isinstance(value, tuple) else ()))
        case origin if origin in (Union, UnionType) and all(issubclass(arg, SexpRecord) for arg in args):
            return _one_of(cls, {arg.HEAD: arg for arg in args})
    raise TypeError(f"{cls.__name__} has an attribute of a type without a form: {hint}")


def _many(form: Form[Any], collect: Callable[[Iterator[Any]], Any]) -> ListForm[Any]:
    order = sorted if collect is frozenset else tuple
    return ListForm(
        lambda values: tuple(map(form.write, order(values))), lambda values: collect(map(form.read, values))
    )


def _row(cls: type[SexpRecord], forms: list[Form[Any]]) -> ListForm[Any]:
    """Return how several values are written one behind the other."""

    def read(elements: tuple[SExp, ...]) -> tuple[Any, ...]:
        if len(elements) != len(forms):
            raise cls.malformed(f"not {len(forms)} values")
        return tuple(form.read(element) for form, element in zip(forms, elements, strict=True))

    return ListForm(lambda values: tuple(form.write(value) for form, value in zip(forms, values, strict=True)), read)


def _word(cls: type[SexpRecord], words: type[StrEnum]) -> Form[Any]:
    def read(value: SExp) -> StrEnum:
        found = text(value)
        if found not in [*words]:
            raise cls.malformed(f"not one of {', '.join(words)}")
        return words(found)

    return Form(str.encode, read)


def _one_of(cls: type[SexpRecord], kinds: Mapping[bytes, type[SexpRecord]]) -> Form[Any]:
    def read(value: SExp) -> SexpRecord:
        kind = kinds.get(head(value) or b"")
        if kind is None:
            raise cls.malformed(f"not one of {', '.join(f'`({name.decode()} …)`' for name in kinds)}")
        return kind.from_sexp(value)

    return Form(lambda record: record.to_sexp(), read)


def _flag(cls: type[SexpRecord], name: bytes) -> ListForm[bool]:
    def read(elements: tuple[SExp, ...]) -> bool:
        if elements:
            raise cls.malformed(f"`({name.decode()})` has no value")
        return True

    return ListForm(lambda _: (), read)
