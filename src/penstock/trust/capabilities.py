"""Penstock's vocabulary of rights, as tags (paper 5, section 5.2).

    (network <owner> <name> <right>)
    (event-type <owner> <name> <version> <right> <attributes> <where> <when> <source>)
    (decision <owner> <resource type> <resource id> decide|ask)

Places are positional, so that intersecting two rights is intersecting two tags. A place that is left out at the end
means everything, as does `(*)`: `(event-type ed25519:…)` is a blanket capability for all types of one owner.

| place        | content                                                                                               |
|--------------|-------------------------------------------------------------------------------------------------------|
| `owner`      | a principal                                                                                           |
| `name`       | a name, or `(* glob …)` with `*` at the beginning, the end or within                                  |
| `version`    | a version                                                                                             |
| `right`      | `connect`, `broker`, `install`, `administer`, `audit`; `publish`, `subscribe`, `route`, `keys` …      |
| `attributes` | a set of `(attr <owner> <type> <uid>)`; the beginning of such a list means all that begin so          |
| `where`      | `(* where …)` over the event: `(is <attr> <value>)` forces a value, `(sql <text> (<name> <attr>) …)`  |
| `when`       | `(* where (sql <text>) …)` over the environment: dynamic conditions (section 6.4)                     |
| `source`     | `hidden` if a subscriber may not see who published an event                                           |

A forced value filters on subscribe and substitutes on publish; two different ones intersect to nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.codec.sexp import SExp, text
from penstock.codec.values import value_from_sexp, value_to_sexp
from penstock.errors import MalformedError, expect
from penstock.model.names import AttributeId, NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.topics import TopicPattern
from penstock.model.types import EventType
from penstock.model.values import Value
from penstock.selector import Selector, parse
from penstock.trust.certificates import Authorisation, Statement
from penstock.trust.tags import ANY, Set, Tag, Where, covers, matches, parse_tag, to_sexp

NETWORK: Final = b"network"
EVENT_TYPE: Final = b"event-type"
DECISION: Final = b"decision"
_NAME, _ATTRIBUTES, _WHERE, _WHEN, _SOURCE, _PLACES = 2, 5, 6, 7, 8, 9
_HIDDEN: Final = b"hidden"
_STAR: Final[SExp] = (b"*",)


class Right(StrEnum):
    """The rights, and the four single operations of `manage`.

    `connect` permits connecting to a network as a client, `broker` in addition being a broker of it. `restrictions`
    permits a client to ask about its own restrictions. `route` permits a broker to carry the events of a type.
    `history` gives the keys of past epochs, and `keys` permits managing the key groups of a type. `stamp` permits
    signing time-stamps for an owner. It must cover all types of the owner. `administer` and `audit` permit changing and
    reading what the access control service of a domain keeps; the network is the domain's own, `DOMAIN/NAME`.
    """

    CONNECT = "connect"
    BROKER = "broker"
    INSTALL = "install"
    ADMINISTER = "administer"
    AUDIT = "audit"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    RESTRICTIONS = "restrictions"
    ROUTE = "route"
    HISTORY = "history"
    KEYS = "keys"
    STAMP = "stamp"
    MANAGE = "manage"
    MANAGE_ADD = "manage-add"
    MANAGE_REMOVE = "manage-remove"
    MANAGE_RENAME = "manage-rename"
    MANAGE_RETYPE = "manage-retype"

    @property
    def on_network(self) -> bool:
        """True for the rights on a network, false for those on event types."""
        return self in _ON_NETWORK

    def to_sexp(self) -> SExp:
        """Return the right as an element of a tag: `manage` is a list, so that it covers its single operations."""
        head, _, operation = self.partition("-")
        if head != "manage":
            return head.encode()
        return (b"manage", operation.encode()) if operation else (b"manage",)


class DecisionRight(StrEnum):
    """The rights on decisions about resources: to make them, and to ask for them (docs/reference/decisions.md)."""

    DECIDE = "decide"
    ASK = "ask"


_ON_NETWORK: Final = frozenset((Right.CONNECT, Right.BROKER, Right.INSTALL, Right.ADMINISTER, Right.AUDIT))

BROKER_RIGHTS: Final = (Right.CONNECT, Right.BROKER)
"""The rights that a broker needs on its network. Without one of them it is not a broker."""


@dataclass(frozen=True, slots=True)
class BoundSelector:
    """A selector whose names are bound to attribute ids, so that renaming an attribute changes nothing.

    Raises `MalformedError` (`capability.unbound`) when a name is not bound.
    """

    selector: Selector
    bindings: Mapping[str, AttributeId]

    def __post_init__(self) -> None:
        unbound = self.selector.attributes - self.bindings.keys()
        if unbound:
            raise MalformedError(
                "capability.unbound",
                f"`{min(unbound)}` in a forced selector is not bound to an attribute",
                hint="bind every name to an attribute id",
            )
        used = {name: self.bindings[name] for name in self.selector.attributes}
        object.__setattr__(self, "bindings", MappingProxyType(used))

    @classmethod
    def of(cls, source: str, event_type: EventType) -> "BoundSelector":
        """Parse a selector and bind its names to the attributes of a type.

        Raises `SelectorError` when it does not fit the type.
        """
        selector = parse(source)
        selector.check(event_type.schema)
        return cls(selector, {name: event_type.by_name[name].id for name in selector.attributes})

    @property
    def by_id(self) -> Selector:
        """The selector with attribute ids instead of names."""
        return self.selector.rename(self.bindings)

    def to_sexp(self) -> SExp:
        """Return the conjunct of a `where`."""
        bound = tuple((name.encode(), attribute_to_sexp(self.bindings[name])) for name in sorted(self.bindings))
        return (b"sql", self.selector.text.encode(), *bound)

    @classmethod
    def from_sexp(cls, conjunct: SExp) -> "BoundSelector":
        """Read the conjunct of a `where`. Raises `MalformedError` (`capability.*`) and `SelectorError`."""
        match conjunct:
            case (b"sql", bytes(source), *bound):
                bindings: dict[str, AttributeId] = {}
                for pair in bound:
                    match pair:
                        case (bytes(name), tuple(attribute)):
                            bindings[text(name)] = attribute_from_sexp(attribute)
                        case _:
                            raise _malformed("a binding is a name and an attribute")
                return cls(parse(text(source)), bindings)
        raise _malformed("not a selector")


def attribute_to_sexp(attribute: AttributeId) -> SExp:
    """Write an attribute id."""
    return (b"attr", str(attribute.owner).encode(), attribute.type_name.encode(), attribute.uid.encode())


def attribute_from_sexp(value: SExp) -> AttributeId:
    """Read an attribute id. Raises `MalformedError` (`capability.malformed`, `name.malformed`)."""
    match value:
        case (b"attr", bytes(owner), bytes(type_name), bytes(uid)):
            return AttributeId(Principal.parse(text(owner)), text(type_name), text(uid))
    raise _malformed("not an attribute id")


def network_tag(owner: Principal | None = None, name: str | None = None, rights: Iterable[Right] | None = None) -> Tag:
    """Return a right on networks. Missing arguments mean all. Raises `MalformedError` (`capability.right`)."""
    if owner is not None and name is not None:
        NetworkName(owner, name)
    return _tag(NETWORK, _principal(owner), _STAR if name is None else name.encode(), _rights(rights, network=True))


def event_tag(  # noqa: PLR0913  # the places of the vocabulary
    owner: Principal | None = None,
    name: str | None = None,
    version: str | None = None,
    rights: Iterable[Right] | None = None,
    *,
    attributes: Iterable[AttributeId] | None = None,
    forced: Mapping[AttributeId, Value] | None = None,
    where: Iterable[BoundSelector] = (),
    when: Iterable[str] = (),
    source: bool = True,
) -> Tag:
    """Return a right on event types. Missing arguments mean all. `name` can contain `*`.

    A forced attribute counts as listed. Without `source`, a subscriber may not see who published an event. Raises
    `MalformedError` (`capability.right` and what the parts raise), `SelectorError` for a condition in `when` that does
    not parse.
    """
    forced = forced or {}
    attributes = None if attributes is None else list(attributes)
    for attribute in (*(attributes or ()), *forced):
        expect(attribute, AttributeId, "an attribute of a right", "`event_type.by_name[name].id` gives its id")
    listed: SExp = _STAR
    if attributes is not None:
        chosen = sorted({*attributes, *forced})
        listed = (b"*", b"set", *(attribute_to_sexp(attribute) for attribute in chosen))
    conjuncts = [(b"is", attribute_to_sexp(attribute), value_to_sexp(value)) for attribute, value in forced.items()]
    conditions: list[SExp] = [(b"sql", parse(condition).text.encode()) for condition in when]
    return _tag(
        EVENT_TYPE,
        _principal(owner),
        _pattern(name),
        _STAR if version is None else version.encode(),
        _rights(rights, network=False),
        listed,
        _where([*conjuncts, *(bound.to_sexp() for bound in where)]),
        _where(conditions),
        _STAR if source else _HIDDEN,
    )


def decision_tag(
    owner: Principal | None = None,
    resource_type: str | None = None,
    resource_id: str | None = None,
    rights: Iterable[DecisionRight] | None = None,
) -> Tag:
    """Return a right on decisions about resources. Missing arguments mean all; type and id can contain `*`."""
    chosen: SExp = _STAR if rights is None else (b"*", b"set", *(right.encode() for right in sorted(set(rights))))
    return _tag(DECISION, _principal(owner), _pattern(resource_type), _pattern(resource_id), chosen)


def _pattern(name: str | None) -> SExp:
    if name is None:
        return _STAR
    return (b"*", b"glob", name.encode()) if "*" in name else name.encode()


def _tag(head: bytes, *places: SExp) -> Tag:
    kept = list(places)
    while kept and kept[-1] == _STAR:
        kept.pop()
    return parse_tag((head, *kept))


def _principal(owner: Principal | None) -> SExp:
    return _STAR if owner is None else str(owner).encode()


def _rights(rights: Iterable[Right] | None, *, network: bool) -> SExp:
    if rights is None:
        return _STAR
    chosen = sorted(set(rights))
    if not chosen or any(right.on_network is not network for right in chosen):
        raise wrong_right()
    return (b"*", b"set", *(right.to_sexp() for right in chosen))


def _where(conjuncts: list[SExp]) -> SExp:
    return (b"*", b"where", *conjuncts) if conjuncts else _STAR


def owner_of_tag(tag: Tag) -> Principal | None:
    """Return the owner of the networks, types or decisions that a right is on; None if they can be of several."""
    match tag:
        case (head, bytes(owner), *_) if head in (NETWORK, EVENT_TYPE, DECISION):
            try:
                return Principal.parse(text(owner))
            except MalformedError:
                return None
    return None


def network_request(network: NetworkName, right: Right) -> Tag:
    """Return a verifier's request about a network. Raises `MalformedError` (`capability.right`)."""
    return (NETWORK, str(network.owner).encode(), network.name.encode(), _request_right(right, network=True))


def type_request(name: TypeName, right: Right) -> Tag:
    """Return a verifier's request about one version of an event type. Raises `MalformedError` (`capability.right`)."""
    owner, version = str(name.owner).encode(), name.version.encode()
    return (EVENT_TYPE, owner, name.name.encode(), version, _request_right(right, network=False))


def decision_request(owner: Principal, resource_type: str, resource_id: str, right: DecisionRight) -> SExp:
    """Return a verifier's request about decisions on one resource."""
    return (DECISION, str(owner).encode(), resource_type.encode(), resource_id.encode(), right.encode())


def _request_right(right: Right, *, network: bool) -> Tag:
    if right.on_network is not network:
        raise wrong_right()
    return parse_tag(right.to_sexp())


def wrong_right() -> MalformedError:
    """Return the error for a right on something else, or for none."""
    return MalformedError(
        "capability.right",
        "connect, broker, install, administer and audit are rights on a network, decide and ask on decisions, all"
        " others on event types; give one",
        hint="grant them in two certificates",
    )


@dataclass(frozen=True, slots=True)
class RightTerms:
    """The terms of a reduced right on one event type: attributes, forced values, selectors, conditions.

    `attributes` is None if all are granted. `where` uses attribute ids, `when` uses names of the environment.
    """

    attributes: frozenset[AttributeId] | None
    forced: Mapping[AttributeId, Value]
    where: tuple[Selector, ...]
    when: tuple[Selector, ...]
    #: whether a subscriber may see who published
    source: bool = True


def read_terms(tag: Tag, event_type: EventType) -> RightTerms:
    """Read the terms of a right that was reduced for `type_request`.

    Raises `MalformedError` (`capability.*` and errors of the parts): a right that is not understood grants nothing.
    """
    if not isinstance(tag, tuple) or tag[:1] != (EVENT_TYPE,) or len(tag) > _PLACES:
        raise _malformed("a right on event types has at most eight places")
    attributes: frozenset[AttributeId] | None = None
    if len(tag) > _ATTRIBUTES and tag[_ATTRIBUTES] is not ANY:
        granted = tag[_ATTRIBUTES]
        ids = (attribute.id for attribute in event_type.attributes)
        attributes = frozenset(id_ for id_ in ids if matches(attribute_to_sexp(id_), granted))
    forced: dict[AttributeId, Value] = {}
    where: list[Selector] = []
    for conjunct in _conjuncts(tag, _WHERE):
        match conjunct:
            case (b"is", attribute, value):
                forced[attribute_from_sexp(attribute)] = value_from_sexp(value)
            case _:
                where.append(BoundSelector.from_sexp(conjunct).by_id)
    when: list[Selector] = []
    for conjunct in _conjuncts(tag, _WHEN):
        match conjunct:
            case (b"sql", bytes(source)):
                when.append(parse(text(source)))
            case _:
                raise _malformed("a dynamic condition is a selector over the environment, without bindings")
    shown = len(tag) <= _SOURCE or tag[_SOURCE] is ANY
    if not shown and tag[_SOURCE] != _HIDDEN:
        raise _malformed("the place `source` holds `hidden`")
    return RightTerms(attributes, MappingProxyType(forced), tuple(where), tuple(when), shown)


def _conjuncts(tag: tuple[Tag, ...], place: int) -> list[SExp]:
    if len(tag) <= place or tag[place] is ANY:
        return []
    found = tag[place]
    if not isinstance(found, Where):
        raise _malformed("the places `where` and `when` hold `(* where …)`")
    return sorted(found.conjuncts, key=repr)


@dataclass(frozen=True, slots=True)
class Flag:
    """Something in a certificate that is permitted but may surprise its issuer."""

    code: str
    message: str


def flags(statement: Statement) -> tuple[Flag, ...]:
    """Return warnings about a certificate before it is issued.

    `capability.forced-on-domain`: a value forced on someone who may pass the right on, that is on a domain. The
    issuer cannot enforce it there; it binds clients only (section 5.2.2). `capability.no-expiry`: root authority is
    delegated without expiry, because nothing limits it in time (section 5.4).
    """
    found: list[Flag] = []
    if not isinstance(statement, Authorisation):
        return ()
    if statement.propagate and _forces(statement.tag):
        found.append(
            Flag(
                "capability.forced-on-domain",
                "forced values and selectors bind clients only; a domain that may pass this on enforces them at will",
            )
        )
    if statement.propagate and statement.validity.not_after is None:
        found.append(
            Flag("capability.no-expiry", "the right may be passed on and never expires: root authority is delegated")
        )
    return tuple(found)


def _forces(tag: Tag) -> bool:
    if isinstance(tag, Set):
        return any(_forces(member) for member in tag.members())
    return isinstance(tag, tuple) and tag[:1] == (EVENT_TYPE,) and len(tag) > _WHERE and isinstance(tag[_WHERE], Where)


AttributeText: TypeAlias = Callable[[str, str, str], str]
"""Write an attribute, given its owner, the name of the defining type, and its UID; none of them need be well-formed."""


def _attribute_text(_owner: str, type_name: str, uid: str) -> str:
    return f"{type_name}#{uid}"


def describe_tag(tag: Tag, attribute: AttributeText = _attribute_text) -> dict[str, object]:
    """Return a tag of the vocabulary as plain data under the names of its places; other tags as they are.

    `attribute` writes each attribute (default: without its owner).
    """
    value = to_sexp(tag)
    names: dict[bytes, tuple[str, ...]] = {
        NETWORK: ("owner", "name", "rights"),
        EVENT_TYPE: ("owner", "name", "version", "rights", "attributes", "where", "when", "source"),
        DECISION: ("owner", "type", "id", "rights"),
    }
    if not isinstance(value, tuple) or not value or not isinstance(value[0], bytes) or value[0] not in names:
        return {"tag": _plain(value, attribute)}
    places = names[value[0]]
    described: dict[str, object] = {"resource": value[0].decode()}
    described |= dict.fromkeys(places[:3], "*")
    described |= {place: _plain(element, attribute) for place, element in zip(places, value[1:], strict=False)}
    return described


def _plain(value: SExp, attribute: AttributeText) -> object:
    match value:
        case bytes(atom):
            return atom.decode(errors="backslashreplace")
        case (b"*",):
            return "*"
        case (b"*", b"glob" | b"prefix" as form, bytes(pattern)):
            return pattern.decode(errors="backslashreplace") + "*" * (form == b"prefix")
        case (b"*", b"set" | b"where", *members):
            return [_plain(member, attribute) for member in members]
        case (b"attr", bytes(owner), bytes(type_name), bytes(uid)):
            return attribute(*(part.decode(errors="replace") for part in (owner, type_name, uid)))
        case (b"is", forced, (bytes(), bytes(written))):
            return f"{_plain(forced, attribute)} = {written.decode(errors='replace')!r}"
        case (b"sql", bytes(source), *_):
            return source.decode(errors="replace")
        case (b"manage", *operation):
            return "-".join(["manage", *(str(_plain(part, attribute)) for part in operation)])
        case tuple(parts):
            return [_plain(part, attribute) for part in parts]
    return str(value)


def _malformed(message: str) -> MalformedError:
    return MalformedError("capability.malformed", message, hint="see docs/reference/capabilities.md for the vocabulary")


def topic_tag(
    owner: Principal | None,
    patterns: Iterable[str],
    rights: Iterable[Right],
    *,
    super_topics: bool = False,
    when: Iterable[str] = (),
) -> Tag:
    """Return rights on the topics of an owner, or of all, that match a pattern; `**` in it is one or more levels.

    With `super_topics` the rights are on all their super-topics too, as publishers need. Raises
    `MalformedError` (`topic.pattern`, `capability.right`), `LimitError` (`topic.limit`), and `SelectorError` for a
    condition in `when` that does not parse.
    """
    chosen = [TopicPattern(text) for text in patterns]
    if not chosen:
        raise MalformedError("topic.pattern", "the right names no topic", hint="name one, or `**` for all")
    if super_topics:
        chosen += [above for pattern in chosen for above in pattern.super_patterns]
    names = sorted({pattern.type_pattern for pattern in chosen})
    body = to_sexp(event_tag(owner, None, None, rights, when=when))
    members = ((b"*", b"glob", name.encode()) if "*" in name else name.encode() for name in names)
    if not isinstance(body, tuple):
        raise MalformedError("capability.malformed", "a right on event types is a list")
    return parse_tag((*body[:_NAME], (b"*", b"set", *members), *body[_NAME + 1 :]))


def lacking_above(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of the super-topics that rights on these topics are not on, those of the first levels first.

    Raises as `topic_tag` does.
    """
    chosen = tuple(patterns)
    given = topic_tag(None, chosen, [Right.PUBLISH])
    needed = {above.text for text in chosen for above in TopicPattern(text).super_patterns}
    found = (text for text in needed if not covers(given, topic_tag(None, [text], [Right.PUBLISH])))
    return tuple(sorted(found, key=lambda text: (text.count("/"), text)))
