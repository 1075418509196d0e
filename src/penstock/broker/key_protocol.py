"""What clients ask their broker about keys, as values and as plain trees for the wire (`protocol`).

    ["keys", <number>, <word>, <type>, <attribute>, <argument>]
    ["fetch-keys", <number>, <signed request>]

The words are those of `KeyWord`. A type is `owner/name`, or an empty text where all are meant; an attribute is named as
people name it, and an empty text where all of the type are meant. The key of a blinded type's labels is asked for as
that of `LABELS`, and is not among all others.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from penstock.broker.key_sealing import open_history
from penstock.codec.sexp import parse_canonical
from penstock.codec.wire import Wire, Writable
from penstock.crypto.hpke import SealingKey
from penstock.crypto.wrapping import Secret
from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.key_messages import KeyGroup, KeyHistory
from penstock.trust.signed import read_signed

#: of the name of an attribute
_LONGEST: Final = 256
LABELS: Final = "(labels)"
"""What stands for the labels of a blinded type where the name of an attribute does for others."""


class KeyWord(StrEnum):
    """What a client may ask about keys."""

    STATUS = "status"
    JOIN = "join"
    ROTATE = "rotate"
    EVICT = "evict"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class AskKeys:
    """Tell me which keys there are, or change something about them."""

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
    """Have a key manager asked for keys of old epochs, with a request that I have signed."""

    number: int
    signed: bytes = field(repr=False)

    def to_tree(self) -> list[Writable]:
        """Return the message as a plain tree."""
        return ["fetch-keys", self.number, self.signed]


def read_ask(number: int, word: str, of_type: str, attribute: str, argument: Wire) -> AskKeys:
    """Read a question. Raises `MalformedError` (`protocol.malformed` and what the parts raise)."""
    if word not in tuple(KeyWord) or len(attribute) > _LONGEST:
        raise _malformed()
    found = _type(of_type) if of_type else None
    match KeyWord(word), argument:
        case KeyWord.EVICT, str(who):
            return AskKeys(number, KeyWord.EVICT, found, attribute, broker=Principal.parse(who))
        case KeyWord.FORGET, datetime():
            return AskKeys(number, KeyWord.FORGET, found, attribute, before=argument)
        case KeyWord.STATUS | KeyWord.JOIN | KeyWord.ROTATE, "":
            return AskKeys(number, KeyWord(word), found, attribute)
    raise _malformed()


def _malformed() -> MalformedError:
    return MalformedError("protocol.malformed", "not a question about keys")


def _type(text: str) -> TypeKey:
    owner, slash, name = text.partition("/")
    if not slash:
        raise MalformedError("name.malformed", f"`{text[:80]}` is no type", hint="write `owner/name`")
    return TypeKey(Principal.parse(owner), name)


def open_released(answer: Wire, group: KeyGroup, who: Principal, private: SealingKey) -> dict[int, Secret]:
    """Return the keys that were released, by epoch. Raises `RefusedError` (`keys.unopened`), `MalformedError`.

    Who may manage keys the broker has asked; keys of somebody else would open nothing.
    """
    found: dict[int, Secret] = {}
    match answer:
        case {"history": bytes(signed), "live": list(live)}:
            for one in live:
                match one:
                    case [int(epoch), bytes(sealed)]:
                        found[epoch] = open_history(group, who, private, sealed)[0]
            if signed:
                value = read_signed(parse_canonical(signed), KeyHistory).verify().value
                found |= dict(enumerate(open_history(group, who, private, value.sealed), value.first))
            return found
    raise _malformed()
