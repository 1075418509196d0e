"""What clients and their local broker say to each other, as values and as plain trees for the wire.

A message is a list that begins with a word. The first one of a link is `Hello`, answered by `Welcome`; it says whether
a client or a broker has come, and what follows between brokers is in `broker.messages`.

    client -> broker   hello, disclose, describe, add-type, remove-type, subscribe, unsubscribe, advertise, unadvertise,
                       restrictions, evolve, policy, status, keys, fetch-keys, publish
    broker -> client   welcome, accepted, refused, answered, events, quenched

Requests are numbered by the client, and answers carry the number. `publish` is answered by `refused` for each event
that is, and by `accepted` in the end; under number 0 by the refusals alone. Events travel as rows, many in one message:
the id, the time, and a value for each attribute of the type's version, in its order; null is a value that is not there
or may not be seen.

`read_request` and `read_word` read exactly what `to_tree` writes, within `Limits`; whatever else a tree is, they raise
`MalformedError` (`protocol.malformed`) or what the parts of a message raise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Final, TypeAlias

from penstock.broker.key_protocol import AskKeys, FetchKeys, read_ask
from penstock.broker.rows import Row, read_rows
from penstock.codec.wire import Wire, Writable
from penstock.errors import MalformedError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX

VERSION: Final = 1
_ID_LENGTH: Final = 256


class Role(StrEnum):
    """Who has come."""

    CLIENT = "client"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: who I am is known already, this is what I am, and what I disclose."""

    role: Role
    credentials: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["hello", VERSION, str(self.role), self.credentials]


@dataclass(frozen=True, slots=True)
class Welcome:
    """You are let in. A broker discloses all that it has."""

    credentials: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["welcome", VERSION, self.credentials]


@dataclass(frozen=True, slots=True)
class Disclose:
    """Further credentials."""

    number: int
    credentials: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["disclose", self.number, self.credentials]


@dataclass(frozen=True, slots=True)
class Describe:
    """Tell me the definition of a type, and what it rests on."""

    number: int
    type: TypeName

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["describe", self.number, str(self.type)]


@dataclass(frozen=True, slots=True)
class AddType:
    """Serve this type."""

    number: int
    definition: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["add-type", self.number, self.definition]


@dataclass(frozen=True, slots=True)
class RemoveType:
    """Serve this type no longer."""

    number: int
    type: TypeName

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["remove-type", self.number, str(self.type)]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Give me events. `definitions` are of types that the broker may not know: parents first."""

    number: int
    id: str
    type: TypeName
    selector: str = field(repr=False)
    definitions: tuple[bytes, ...] = field(default=(), repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["subscribe", self.number, self.id, str(self.type), self.selector, self.definitions]


@dataclass(frozen=True, slots=True)
class Advertise:
    """Let me publish events."""

    number: int
    id: str
    type: TypeName
    definitions: tuple[bytes, ...] = field(default=(), repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["advertise", self.number, self.id, str(self.type), self.definitions]


@dataclass(frozen=True, slots=True)
class Named:
    """A request about a subscription or advertisement that stands: to end it, or to ask how it is restricted."""

    WORDS: ClassVar = ("unsubscribe", "unadvertise", "restrictions")
    number: int
    word: str
    id: str

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return [self.word, self.number, self.id]


@dataclass(frozen=True, slots=True)
class Evolve:
    """Pass on what the owner of types has signed: a change of policy, or the time."""

    number: int
    signed: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["evolve", self.number, self.signed]


@dataclass(frozen=True, slots=True)
class Policy:
    """Tell me how far an owner's policy is here, and its events after a number."""

    number: int
    owner: Principal
    after: int

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["policy", self.number, str(self.owner), self.after]


@dataclass(frozen=True, slots=True)
class Status:
    """Tell me how the broker sees the network."""

    number: int

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["status", self.number]


@dataclass(frozen=True, slots=True)
class Publish:
    """Events of one version of a type, under an advertisement."""

    number: int
    advertisement: str
    type: TypeName
    rows: Sequence[Row] = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["publish", self.number, self.advertisement, str(self.type), self.rows]


Asking: TypeAlias = (
    Disclose
    | Describe
    | AddType
    | RemoveType
    | Subscribe
    | Advertise
    | Named
    | Evolve
    | Policy
    | Status
    | AskKeys
    | FetchKeys
    | Publish
)
"""What has a number, and an answer."""

Request: TypeAlias = Hello | Asking


def word_of(request: Request) -> str:
    """Return the word that a request begins with."""
    return str(request.to_tree()[0])


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request stands, wholly or in part."""

    number: int

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["accepted", self.number]


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was refused; of several events, the one at `position`. The detail is for those who may have it."""

    number: int
    code: str
    message: str
    hint: str = ""
    detail: Wire = field(default=None, repr=False)
    position: int = 0

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["refused", self.number, self.code, self.message, self.hint, self.detail, self.position]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a request asked for."""

    number: int
    answer: Wire = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["answered", self.number, self.answer]


@dataclass(frozen=True, slots=True)
class Events:
    """Events for a subscription."""

    subscription: str
    rows: Sequence[Row] = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["events", self.subscription, self.rows]


@dataclass(frozen=True, slots=True)
class Quenched:
    """Nobody wants what an advertisement announces, or somebody does again."""

    advertisement: str
    quiet: bool

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["quenched", self.advertisement, self.quiet]


Word: TypeAlias = Welcome | Accepted | Refused | Answered | Events | Quenched


def read_request(tree: Wire) -> Request:
    """Read what a client says.

    Raises `MalformedError` (`protocol.malformed`, `protocol.version`, `name.malformed`, `principal.malformed`).
    """
    match tree:
        case ["publish", int(number), str(advertisement), str(name), list(rows)]:
            return Publish(_number(number), advertisement, _type(name), read_rows(rows))
        case ["hello", int(version), str(role), bytes(credentials)]:
            _check_version(version)
            if role not in tuple(Role):
                raise _malformed("a role that nobody has")
            return Hello(Role(role), credentials)
        case ["disclose", int(number), bytes(credentials)]:
            return Disclose(_number(number), credentials)
        case ["describe", int(number), str(name)]:
            return Describe(_number(number), _type(name))
        case ["add-type", int(number), bytes(definition)]:
            return AddType(_number(number), definition)
        case ["remove-type", int(number), str(name)]:
            return RemoveType(_number(number), _type(name))
        case ["subscribe", int(number), str(id_), str(name), str(selector), list(definitions)]:
            return Subscribe(_number(number), _id(id_), _type(name), selector, _octets(definitions))
        case ["advertise", int(number), str(id_), str(name), list(definitions)]:
            return Advertise(_number(number), _id(id_), _type(name), _octets(definitions))
        case ["evolve", int(number), bytes(signed)]:
            return Evolve(_number(number), signed)
        case ["policy", int(number), str(owner), int(after)]:
            return Policy(_number(number), Principal.parse(owner), _number(after))
        case ["keys", int(number), str(word), str(of_type), str(attribute), argument]:
            return read_ask(_number(number), word, of_type, attribute, argument)
        case ["fetch-keys", int(number), bytes(signed)]:
            return FetchKeys(_number(number), signed)
        case ["status", int(number)]:
            return Status(_number(number))
        case [str(word), int(number), str(id_)] if word in Named.WORDS:
            return Named(_number(number), word, _id(id_))
    raise _malformed("a request that nobody knows")


def read_word(tree: Wire) -> Word:
    """Read what a broker says. Raises `MalformedError` (`protocol.malformed`, `protocol.version`)."""
    match tree:
        case ["events", str(subscription), list(rows)]:
            return Events(subscription, read_rows(rows))
        case ["accepted", int(number)]:
            return Accepted(_number(number))
        case ["refused", int(number), str(code), str(message), str(hint), detail, int(position)]:
            return Refused(_number(number), code, message, hint, detail, position)
        case ["answered", int(number), answer]:
            return Answered(_number(number), answer)
        case ["quenched", str(advertisement), bool(quiet)]:
            return Quenched(advertisement, quiet)
        case ["welcome", int(version), bytes(credentials)]:
            _check_version(version)
            return Welcome(credentials)
    raise _malformed("a word that nobody knows")


def _malformed(what: str) -> MalformedError:
    return MalformedError("protocol.malformed", f"not a message between a client and its broker: {what}")


def _check_version(version: int) -> None:
    if version != VERSION:
        raise MalformedError(
            "protocol.version", f"the peer speaks version {version}, this is {VERSION}", hint="update the older one"
        )


def _number(number: int) -> int:
    if number is True or number is False or not 0 <= number <= INTEGER_MAX:
        raise _malformed("the number of a request")
    return number


def _id(text: str) -> str:
    if not 0 < len(text) <= _ID_LENGTH or not text.isprintable():
        raise _malformed("the name of a subscription or advertisement")
    return text


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def _type(text: str) -> TypeName:
    return TypeName.parse(text)


def _octets(items: list[Wire]) -> tuple[bytes, ...]:
    if len(items) > DEFAULT_LIMITS.type_history + DEFAULT_LIMITS.type_depth or not all(
        type(item) is bytes for item in items
    ):
        raise _malformed("definitions")
    return tuple(items)  # type: ignore[arg-type]  # octets, as just seen
