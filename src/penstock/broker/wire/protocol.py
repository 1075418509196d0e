"""The messages between clients and their local broker, as values and as plain trees for the wire.

A message is a list that begins with a word. The first one of a link is `Hello`, answered by `Welcome`; it says whether
a client or a broker has come, and what follows between brokers is in `broker.messages`.

    client -> broker   hello, disclose, describe, add-type, remove-type, subscribe, unsubscribe, advertise, unadvertise,
                       restrictions, watch-rights, evolve, policy, status, credentials, keys, fetch-keys,
                       serve-validity, publish
    broker -> client   welcome, accepted, refused, answered, events, quenched, right-changed, validity-asked

Requests are numbered by the client, and answers carry the number. `publish` is answered by `refused` for each event
that is, and by `accepted` in the end; under number 0 by the refusals alone. Events travel as rows, many in one message:
the id, the time, and a value for each attribute of the type's version, in its order; null is a value that is not there
or may not be seen.

Both sides speak the same version. A broker sends `right-changed` and `validity-asked` only to clients that have asked
for them (`watch-rights`, `serve-validity`), so that clients that do not know these messages never receive one.

`read_request` and `read_word` read exactly what `to_tree` writes, within `CodecLimits`; whatever else a tree is, they
raise `MalformedError` (`protocol.malformed`) or what the parts of a message raise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from types import NoneType
from typing import ClassVar, Final, TypeAlias

from penstock.codec.limits import CODEC_LIMITS, CodecLimits
from penstock.codec.wire import Encoded, Wire, Writable, encode_rows
from penstock.errors import LimitError, MalformedError
from penstock.model.limits import CACHE_ENTRIES, TYPE_DEPTH
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX
from penstock.trust.limits import TYPE_HISTORY
from penstock.trust.refusals import RightChange

# ----------------------------------------------------------------------------------------------------------------------
# Events as they travel between clients and their broker: rows, many in one message.


_TEXT_LENGTH: Final = 4_096
_LISTS: Final = frozenset((list,))
_TEXTS: Final = frozenset((str,))
_TIMES: Final = frozenset((datetime, NoneType))

Row: TypeAlias = list[Wire]
"""An event on the wire: id, time, values."""


def write_events(subscription: str, rows: Sequence[Row], limits: CodecLimits = CODEC_LIMITS) -> list[Encoded]:
    """Return events for a subscription, in as few messages as their size allows. Raises as `write_rows`."""
    return write_rows(["events", subscription], rows, limits)


def write_rows(head: Sequence[Writable], rows: Sequence[Row], limits: CodecLimits = CODEC_LIMITS) -> list[Encoded]:
    """Return rows behind a message's first words, in one message or in more where they are too large for one.

    The values of the rows have been checked. Raises `LimitError` (`wire.limit`) for a row that is too large for any
    message, `MalformedError` (`wire.value`).
    """
    try:
        return [encode_rows(head, rows, limits=limits)]
    except LimitError:
        middle = len(rows) // 2
        if not middle:
            raise
        return [*write_rows(head, rows[:middle], limits), *write_rows(head, rows[middle:], limits)]


def read_rows(items: list[Wire]) -> list[Row]:
    """Read rows, as far as any event has them. Raises `MalformedError` (`protocol.malformed`)."""
    rows: list[Row] = items  # type: ignore[assignment]  # seen next
    if len(rows) == 1 and type(row := rows[0]) is list and len(row) > 1:
        # One event at a time is waited for.
        name = row[0]
        if type(name) is not str or len(name) > _TEXT_LENGTH or type(row[1]) not in _TIMES:
            raise _malformed_rows("the id or the time of an event")
    elif rows:
        # Its id and time at least.
        if not _LISTS.issuperset(map(type, rows)) or min(map(len, rows)) < 2:
            raise _malformed_rows("a row")
        names = [row[0] for row in rows]
        if not _TEXTS.issuperset(map(type, names)) or max(map(len, names)) > _TEXT_LENGTH:  # type: ignore[arg-type]  # texts
            raise _malformed_rows("the id of an event")
        if not _TIMES.issuperset([type(row[1]) for row in rows]):
            raise _malformed_rows("the time of an event")
    return rows


def _malformed_rows(what: str) -> MalformedError:
    return MalformedError("protocol.malformed", f"not a message between a client and its broker: {what}")


# ----------------------------------------------------------------------------------------------------------------------
# What clients ask their broker about keys.
#
#     ["keys", <number>, <word>, <type>, <attribute>, <argument>]
#     ["fetch-keys", <number>, <signed request>]
#
# The words are those of `KeyWord`. A type is `owner/name`, or an empty text where all are meant; an attribute is named
# as people name it, and an empty text where all of the type are meant. The key of a blinded type's labels is asked for
# as that of `LABELS`, and is not among all others.


#: of the name of an attribute
_LONGEST: Final = 256
LABELS: Final = "(labels)"
"""Stands in the place of an attribute's name for the labels of a blinded type."""


class KeyWord(StrEnum):
    """The requests about keys."""

    STATUS = "status"
    JOIN = "join"
    ROTATE = "rotate"
    EVICT = "evict"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class AskKeys:
    """List the keys of the broker, or change something about them."""

    number: int
    word: KeyWord
    type: TypeKey | None = None
    attribute: str = ""
    #: who is to be evicted
    broker: Principal | None = None
    #: before which instant epochs are to be forgotten that were over then
    before: datetime | None = None

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        argument = self.before or ("" if self.broker is None else str(self.broker))
        of_type = "" if self.type is None else str(self.type)
        return ["keys", self.number, str(self.word), of_type, self.attribute, argument]


@dataclass(frozen=True, slots=True)
class FetchKeys:
    """Fetch keys of past epochs from a key manager, with a request that the client has signed."""

    number: int
    signed: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["fetch-keys", self.number, self.signed]


def read_ask(number: int, word: str, of_type: str, attribute: str, argument: Wire) -> AskKeys:
    """Read a question. Raises `MalformedError` (`protocol.malformed` and what the parts raise)."""
    if word not in tuple(KeyWord) or len(attribute) > _LONGEST:
        raise _malformed_key_request()
    found = _key_type(of_type) if of_type else None
    match KeyWord(word), argument:
        case KeyWord.EVICT, str(who):
            return AskKeys(number, KeyWord.EVICT, found, attribute, broker=Principal.parse(who))
        case KeyWord.FORGET, datetime():
            return AskKeys(number, KeyWord.FORGET, found, attribute, before=argument)
        case KeyWord.STATUS | KeyWord.JOIN | KeyWord.ROTATE, "":
            return AskKeys(number, KeyWord(word), found, attribute)
    raise _malformed_key_request()


def _malformed_key_request() -> MalformedError:
    return MalformedError("protocol.malformed", "not a question about keys")


def _key_type(text: str) -> TypeKey:
    owner, slash, name = text.partition("/")
    if not slash:
        raise MalformedError("name.malformed", f"`{text[:80]}` is not a type", hint="write `owner/name`")
    return TypeKey(Principal.parse(owner), name)


# ----------------------------------------------------------------------------------------------------------------------
# The messages between clients and their local broker.


VERSION: Final = 1
_ID_LENGTH: Final = 256
#: validity statements in one hello
HELLO_STATEMENTS: Final = 16


class PeerRole(StrEnum):
    """The role of the peer that connects."""

    CLIENT = "client"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a link: the role and the credentials of the sender, who is authenticated already."""

    role: PeerRole
    credentials: bytes = field(repr=False)
    #: validity statements for certificates with on-line tests
    statements: tuple[bytes, ...] = field(default=(), repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        brought: list[Writable] = [self.statements] if self.statements else []
        return ["hello", VERSION, str(self.role), self.credentials, *brought]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The client is admitted. A broker discloses all its credentials."""

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
class DescribeTypeMessage:
    """Return the definition of a type, and those of its ancestors."""

    number: int
    type: TypeName

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["describe", self.number, str(self.type)]


@dataclass(frozen=True, slots=True)
class AddTypeMessage:
    """Install a type."""

    number: int
    definition: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["add-type", self.number, self.definition]


@dataclass(frozen=True, slots=True)
class RemoveTypeMessage:
    """Remove a type."""

    number: int
    type: TypeName

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["remove-type", self.number, str(self.type)]


@dataclass(frozen=True, slots=True)
class SubscribeMessage:
    """Subscribe. `definitions` are of types that the broker may not know: parents first."""

    number: int
    id: str
    type: TypeName
    selector: str = field(repr=False)
    definitions: tuple[bytes, ...] = field(default=(), repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["subscribe", self.number, self.id, str(self.type), self.selector, self.definitions]


@dataclass(frozen=True, slots=True)
class AdvertiseMessage:
    """Advertise events that the client will publish."""

    number: int
    id: str
    type: TypeName
    definitions: tuple[bytes, ...] = field(default=(), repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["advertise", self.number, self.id, str(self.type), self.definitions]


@dataclass(frozen=True, slots=True)
class NamedRequestMessage:
    """A request about an active subscription or advertisement: end it, or tell how it is restricted."""

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
class ServeValidityMessage:
    """Answer for validity: send me one-time questions about my certificates, and requests for statements."""

    number: int

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["serve-validity", self.number]


@dataclass(frozen=True, slots=True)
class WatchRightsMessage:
    """Tell me from now on when the right to one of my subscriptions or advertisements changes."""

    number: int

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["watch-rights", self.number]


@dataclass(frozen=True, slots=True)
class PolicyHeadMessage:
    """Return the head of an owner's policy at this broker, and its policy events after a number."""

    number: int
    owner: Principal
    after: int

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["policy", self.number, str(self.owner), self.after]


@dataclass(frozen=True, slots=True)
class NetworkStatusMessage:
    """Return how the broker sees the network."""

    number: int

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["status", self.number]


@dataclass(frozen=True, slots=True)
class CredentialStatusMessage:
    """Return the broker's time, which of the client's certificates are revoked, and what it may do with a type."""

    number: int
    about: TypeName | None = None

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["credentials", self.number, "" if self.about is None else str(self.about)]


@dataclass(slots=True)
class PublishMessage:
    """Events of one version of a type, under an advertisement.

    Nobody changes one. It is not frozen, since making it would take four times as long.
    """

    number: int
    advertisement: str
    type: TypeName
    rows: Sequence[Row] = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["publish", self.number, self.advertisement, str(self.type), self.rows]


Asking: TypeAlias = (
    Disclose
    | DescribeTypeMessage
    | AddTypeMessage
    | RemoveTypeMessage
    | SubscribeMessage
    | AdvertiseMessage
    | NamedRequestMessage
    | Evolve
    | ServeValidityMessage
    | WatchRightsMessage
    | PolicyHeadMessage
    | NetworkStatusMessage
    | CredentialStatusMessage
    | AskKeys
    | FetchKeys
    | PublishMessage
)
"""A request that has a number and gets an answer."""

Request: TypeAlias = Hello | Asking


def word_of(request: Request) -> str:
    """Return the word that a request begins with."""
    return str(request.to_tree()[0])


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """A request is active, wholly or in part."""

    number: int

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["accepted", self.number]


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A request was refused; of several events, the one at `position`.

    The detail says which right the client lacks, and which of its certificates are revoked. What was granted, and what
    is missing, is in it for those who may know that.
    """

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
class ResponseMessage:
    """The result of a request."""

    number: int
    answer: Wire = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["answered", self.number, self.answer]


@dataclass(slots=True)
class Events:
    """Events for a subscription. Nobody changes one, as above."""

    subscription: str
    rows: Sequence[Row] = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["events", self.subscription, self.rows]


@dataclass(frozen=True, slots=True)
class QuenchedMessage:
    """Nobody subscribes to what is advertised (`quiet`), or somebody does again."""

    advertisement: str
    quiet: bool

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["quenched", self.advertisement, self.quiet]


@dataclass(frozen=True, slots=True)
class RightChangedMessage:
    """The right to an active subscription or advertisement has changed.

    If it was withdrawn, the rest is that of a refusal. The detail is there for those who may know it, as in a refusal.
    """

    id: str
    change: RightChange
    code: str = ""
    message: str = ""
    hint: str = ""
    detail: Wire = field(default=None, repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["right-changed", self.id, str(self.change), self.code, self.message, self.hint, self.detail]


@dataclass(frozen=True, slots=True)
class ValidityAskedMessage:
    """Somebody needs a validity statement of this client: the answer to a question, or a new one if there is none."""

    question: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["validity-asked", self.question]


Word: TypeAlias = (
    Welcome
    | AcceptedMessage
    | RefusedMessage
    | ResponseMessage
    | Events
    | QuenchedMessage
    | RightChangedMessage
    | ValidityAskedMessage
)


def read_request(tree: Wire) -> Request:
    """Read a message of a client.

    Raises `MalformedError` (`protocol.malformed`, `protocol.version`, `name.malformed`, `principal.malformed`).
    """
    # Events are read without `match`: in Python 3.11 it takes 1 µs for each class that it asks for.
    if type(tree) is list and len(tree) == 5 and tree[0] == "publish":
        _, number, advertisement, name, rows = tree
        if type(number) is int and type(advertisement) is str and type(name) is str and type(rows) is list:
            return PublishMessage(_number(number), advertisement, _type(name), read_rows(rows))
    match tree:
        case ["hello", int(version), str(role), bytes(credentials), *brought]:
            _check_version(version)
            if role not in tuple(PeerRole):
                raise _malformed("an unknown role")
            return Hello(PeerRole(role), credentials, _statements(brought))
        case ["disclose", int(number), bytes(credentials)]:
            return Disclose(_number(number), credentials)
        case ["describe", int(number), str(name)]:
            return DescribeTypeMessage(_number(number), _type(name))
        case ["add-type", int(number), bytes(definition)]:
            return AddTypeMessage(_number(number), definition)
        case ["remove-type", int(number), str(name)]:
            return RemoveTypeMessage(_number(number), _type(name))
        case ["subscribe", int(number), str(id_), str(name), str(selector), list(definitions)]:
            return SubscribeMessage(_number(number), _id(id_), _type(name), selector, _definitions(definitions))
        case ["advertise", int(number), str(id_), str(name), list(definitions)]:
            return AdvertiseMessage(_number(number), _id(id_), _type(name), _definitions(definitions))
        case ["evolve", int(number), bytes(signed)]:
            return Evolve(_number(number), signed)
        case ["serve-validity", int(number)]:
            return ServeValidityMessage(_number(number))
        case ["watch-rights", int(number)]:
            return WatchRightsMessage(_number(number))
        case ["policy", int(number), str(owner), int(after)]:
            return PolicyHeadMessage(_number(number), Principal.parse(owner), _number(after))
        case ["keys", int(number), str(word), str(of_type), str(attribute), argument]:
            return read_ask(_number(number), word, of_type, attribute, argument)
        case ["fetch-keys", int(number), bytes(signed)]:
            return FetchKeys(_number(number), signed)
        case ["status", int(number)]:
            return NetworkStatusMessage(_number(number))
        case ["credentials", int(number), str(name)]:
            return CredentialStatusMessage(_number(number), _type(name) if name else None)
        case [str(word), int(number), str(id_)] if word in NamedRequestMessage.WORDS:
            return NamedRequestMessage(_number(number), word, _id(id_))
    raise _malformed("an unknown request")


def is_publication(tree: Wire) -> bool:
    """Say whether a client's message publishes events, if it is well-formed."""
    return isinstance(tree, list) and bool(tree) and tree[0] == "publish"


def is_delivery(tree: Wire) -> bool:
    """Say whether a broker's message delivers events, if it is well-formed."""
    return isinstance(tree, list) and bool(tree) and tree[0] == "events"


def read_word(tree: Wire) -> Word:
    """Read a message of a broker. Raises `MalformedError` (`protocol.malformed`, `protocol.version`)."""
    if type(tree) is list and len(tree) == 3 and tree[0] == "events":
        # Without `match`, as above.
        _, subscription, rows = tree
        if type(subscription) is str and type(rows) is list:
            return Events(subscription, read_rows(rows))
    match tree:
        case ["accepted", int(number)]:
            return AcceptedMessage(_number(number))
        case ["refused", int(number), str(code), str(message), str(hint), detail, int(position)]:
            return RefusedMessage(_number(number), code, message, hint, detail, position)
        case ["answered", int(number), answer]:
            return ResponseMessage(_number(number), answer)
        case ["quenched", str(advertisement), bool(quiet)]:
            return QuenchedMessage(advertisement, quiet)
        case ["right-changed", str(id_), str(change), str(code), str(message), str(hint), detail]:
            if change not in tuple(RightChange):
                raise _malformed("an unknown change of a right")
            return RightChangedMessage(id_, RightChange(change), code, message, hint, detail)
        case ["validity-asked", bytes(question)]:
            return ValidityAskedMessage(question)
        case ["welcome", int(version), bytes(credentials)]:
            _check_version(version)
            return Welcome(credentials)
    raise _malformed("an unknown message")


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


@lru_cache(maxsize=CACHE_ENTRIES)
def _type(text: str) -> TypeName:
    return TypeName.parse(text)


def _statements(brought: list[Wire]) -> tuple[bytes, ...]:
    match brought:
        case []:
            return ()
        case [list(items)] if 0 < len(items) <= HELLO_STATEMENTS and all(type(item) is bytes for item in items):
            return tuple(items)  # type: ignore[arg-type]  # bytes, as just seen
    raise _malformed("validity statements")


def _definitions(items: list[Wire]) -> tuple[bytes, ...]:
    if len(items) > TYPE_HISTORY + TYPE_DEPTH or not all(type(item) is bytes for item in items):
        raise _malformed("definitions")
    return tuple(items)  # type: ignore[arg-type]  # bytes, as just seen
