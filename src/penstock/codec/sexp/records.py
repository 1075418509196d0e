"""Records: lists with a head and fields, which a dataclass describes once, for reading and for writing.

    @dataclass(frozen=True, slots=True)
    class Parcel(SexpRecord):
        HEAD: ClassVar = b"parcel"
        to: str
        weights: tuple[int, ...]
        fragile: bool = False
        note: str | None = None

describes `(parcel (to <text>) (weights <n> …) [(fragile)] [(note <text>)])`. Each attribute is a field of its name,
with `-` for `_`, in the order of the class or of its `ORDER`. The type says what stands in the field:

- `tuple[X, ...]` and `frozenset[X]`: any number of values, those of a set in their order;
- `bool = False`: nothing. The field is there if the value is true;
- `X | None = None`: one value. The field is not there if the value is None;
- `tuple[X, Y]`, as one of several values: a list of two;
- a record, or a union of records: one value, which its head tells from others;
- a `StrEnum`, and each type that the class has in its `FORMS`: one value.

`Annotated` says what differs: how the value is written (`Form`) or all that stands in the field (`ListForm`), another
name (`Named`), `OMITTED` for a field that is not there if it has its default, and `BARE` for what stands in the record
itself: one value, all that is left, or the fields of another record. Attributes that follow each other under one name
are the values of one field.

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

from penstock.codec.sexp.values import SExp, field, head, text
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
        """Read a record. Raises `MalformedError`: `sexp.duplicate`, that of `malformed`, and what its forms raise."""
        return read_record(cls, body)

    def verify_fields(self) -> None:
        """Raise if a record that was read has fields that do not fit each other."""


def written_fields(record: SexpRecord) -> Iterator[SExp]:
    """Yield the fields of a record as they are written."""
    for each in _layout(type(record)):
        value = each.get(record)
        if each.record is not None:
            yield from written_fields(value)
        elif value != each.default:
            elements = each.form.write(value)
            if each.name:
                yield (each.name, *elements)
            else:
                yield from elements


def read_record(cls: type[R], body: SExp) -> R:
    """Read a record; what `from_sexp` does unless a class has more to say."""
    if not isinstance(body, tuple) or head(body) != cls.HEAD:
        raise cls.malformed(f"not a `({cls.HEAD.decode()} …)`")
    record, rest = read_fields(cls, body)
    if rest:
        raise _misplaced(cls, body, None)
    return record


def read_fields(cls: type[R], body: tuple[SExp, ...]) -> tuple[R, tuple[SExp, ...]]:
    """Read the fields of a record from a list that begins with them, and return what is left. Raises as `from_sexp`."""
    record, end = _read(cls, body, 1, cls)
    return record, body[end:]


def _read(cls: type[R], body: tuple[SExp, ...], at: int, outer: type[SexpRecord]) -> tuple[R, int]:
    values: dict[str, Any] = {}
    for each in _layout(cls):
        if each.record is not None:
            values[each.attributes[0]], at = _read(each.record, body, at, outer)
            continue
        if each.name:
            there = at < len(body) and head(body[at]) == each.name
        else:
            there = at < len(body) or each.default is _WRITTEN
        if not there and each.default is not _WRITTEN:
            continue
        if not there:
            raise _misplaced(outer, body, each.name)
        end = at + 1 if each.name or each.single else len(body)
        listed = body[at] if each.name else (b"", *body[at:end])
        read, at = each.form.read(listed[1:] if isinstance(listed, tuple) else ()), end
        values |= zip(each.attributes, read if len(each.attributes) > 1 else (read,), strict=True)
    record = cls(**values)
    record.verify_fields()
    return record, at


def _misplaced(cls: type[SexpRecord], body: tuple[SExp, ...], missing: bytes | None) -> MalformedError:
    """Return, or raise, what is wrong with a list whose fields are not those of a record."""
    names = [*_names(cls)]
    there = {name for name in names if field(body, name) is not None}
    what = cls.HEAD.decode()
    if missing is not None and missing not in there:
        return cls.malformed(f"a `{what}` has one `({missing.decode()} …)`")
    for element in body[1:]:
        if head(element) not in names:
            found = "a value" if (name := head(element)) is None else f"`({name.decode(errors='backslashreplace')} …)`"
            return cls.malformed(f"a `{what}` has no field like {found}")
    return cls.malformed(f"the fields of a `{what}` are {', '.join(map(bytes.decode, names))}, in this order")


# ----------------------------------------------------------------------------------------------------------------------
# What a class describes, found out when it is first used.


#: the default of a field that is always there
_WRITTEN: Final = object()
#: in the place of the form of a field that is the fields of another record
_NOTHING: Final[ListForm[Any]] = ListForm(lambda _: (), lambda _: None)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field, and the attributes that are its values.

    It has no name if it is bare: it is one value then (`single`), the fields of a `record`, or all that is left.
    """

    attributes: tuple[str, ...]
    name: bytes
    form: ListForm[Any]
    single: bool = False
    record: type[SexpRecord] | None = None
    default: object = _WRITTEN
    get: Callable[[SexpRecord], Any] = dataclass_field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "get", attrgetter(*self.attributes))


_LAYOUTS: Final[dict[type[SexpRecord], tuple[_Field, ...]]] = {}


def _layout(cls: type[SexpRecord]) -> tuple[_Field, ...]:
    if cls not in _LAYOUTS:
        _LAYOUTS[cls] = _describe_all(cls)
    return _LAYOUTS[cls]


def _describe_all(cls: type[SexpRecord]) -> tuple[_Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    attributes = {each.name: each for each in fields(cls) if each.init}  # type: ignore[arg-type]  # a dataclass
    described = [_describe(cls, attributes[name], hints[name]) for name in cls.ORDER or attributes]
    groups = groupby(enumerate(described), key=lambda item: item[1].name or item[0])
    return tuple(_together(cls, [each for _, each in group]) for _, group in groups)


def _names(cls: type[SexpRecord]) -> Iterator[bytes]:
    for each in _layout(cls):
        yield from _names(each.record) if each.record else (each.name,)


def _together(cls: type[SexpRecord], group: list[_Field]) -> _Field:
    """Return one field for attributes that share one."""
    if len(group) == 1:
        return group[0]
    forms = [each.form for each in group]

    def write(values: tuple[Any, ...]) -> tuple[SExp, ...]:
        return tuple(element for form, value in zip(forms, values, strict=True) for element in form.write(value))

    def read(elements: tuple[SExp, ...]) -> tuple[Any, ...]:
        if len(elements) != len(forms):
            raise cls.malformed(f"`({name.decode()} …)` has {len(forms)} values")
        return tuple(form.read((element,)) for form, element in zip(forms, elements, strict=True))

    name = group[0].name
    return _Field(tuple(each.attributes[0] for each in group), name, ListForm(write, read))


def _describe(cls: type[SexpRecord], attribute: "Field[Any]", hint: Any) -> _Field:
    marks: tuple[object, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *found = get_args(hint)
        marks = tuple(found)
    name = attribute.name.replace("_", "-").encode()
    name = next((mark.name for mark in marks if isinstance(mark, Named)), name)
    given = next((mark for mark in marks if isinstance(mark, Form | ListForm)), None)
    omitted = OMITTED in marks
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint) and attribute.default is None:
        omitted = True
        [hint] = (each for each in get_args(hint) if each is not NoneType)
    if BARE in marks and given is None and isinstance(hint, type) and issubclass(hint, SexpRecord):
        return _Field((attribute.name,), b"", _NOTHING, record=hint)
    single = False
    match given, get_origin(hint), get_args(hint):
        case ListForm(), _, _:
            form = given
        case _, origin, (value, *_) if origin is frozenset or (origin is tuple and get_args(hint)[-1] is ...):
            form = _many(given or _value_form(cls, value), frozenset if origin is frozenset else tuple)
        case None, None, () if hint is bool:
            form, omitted = _flag(cls, name), True
        case _:
            form, single = _one(cls, name, given or _value_form(cls, hint)), True
    default = attribute.default if omitted else _WRITTEN
    return _Field((attribute.name,), b"" if BARE in marks else name, form, single, None, default)


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
            return _pair(cls, [_value_form(cls, arg) for arg in args])
        case origin if origin in (Union, UnionType) and all(issubclass(arg, SexpRecord) for arg in args):
            return _one_of(cls, {arg.HEAD: arg for arg in args})
    raise TypeError(f"{cls.__name__} has an attribute of a type without a form: {hint}")


def _one(cls: type[SexpRecord], name: bytes, form: Form[Any]) -> ListForm[Any]:
    def read(elements: tuple[SExp, ...]) -> object:
        if len(elements) != 1:
            raise cls.malformed(f"`({name.decode()} …)` has one value")
        return form.read(elements[0])

    return ListForm(lambda value: (form.write(value),), read)


def _many(form: Form[Any], collect: Callable[[Iterator[Any]], Any]) -> ListForm[Any]:
    order = sorted if collect is frozenset else tuple
    return ListForm(
        lambda values: tuple(map(form.write, order(values))), lambda values: collect(map(form.read, values))
    )


def _pair(cls: type[SexpRecord], forms: list[Form[Any]]) -> Form[Any]:
    def read(value: SExp) -> tuple[Any, ...]:
        if not isinstance(value, tuple) or len(value) != len(forms):
            raise cls.malformed(f"not a list of {len(forms)} values")
        return tuple(form.read(element) for form, element in zip(forms, value, strict=True))

    return Form(lambda values: tuple(form.write(value) for form, value in zip(forms, values, strict=True)), read)


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
