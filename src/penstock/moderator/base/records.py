"""Encode steps for change records: the state before, and the request with the state after.

    before  (state (rules <standing> …) (types <hung> …) (log <entry> …) (away <principal> …)
                   (wishes <wish> …))
    after   (step <request> (restored <entry> …) (state …))

A record also has who, when and why, and its kind is the kind of the request. Each step has exactly one encoding, and
decoding gives the same step. The image of a whole rule base has the same tables:

    (image <steps> (unsettled <type> …) (state …) (blocks <block> …))

except publishers' rules, which are in blocks (`rules.rule_blocks`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock.codec.limits import wide
from penstock.codec.sexp import SExp, canonical, parse_canonical, text
from penstock.codec.sexp import field as sexp_field
from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.base.tables import Image
from penstock.moderator.rules import steps
from penstock.moderator.rules.rule_blocks import RuleBlock, Standings, standing_from_sexp, standing_to_sexp
from penstock.moderator.rules.rules import PublishRule, SubscribeRule
from penstock.moderator.rules.steps import (
    Delta,
    Logged,
    LoggedAs,
    Note,
    Place,
    Request,
    Rooted,
    RuleChange,
    RuleState,
    RuleStatus,
    Step,
    Strategy,
    SubscriberRule,
)

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """A step in a change record, without who, when and why. It contains rules, which must not appear in logs."""

    kind: str
    before: bytes = field(repr=False)
    after: bytes = field(repr=False)


def to_record(step: Step) -> Record:
    """Return a step as it is stored."""
    request = request_to_sexp(step.request)
    restored = (b"restored", *map(_entry, step.restored))
    return Record(
        kind_of(step.request),
        canonical(_state(step.delta.inverse())),
        canonical((b"step", request, restored, _state(step.delta))),
    )


def kind_of(request: Request) -> str:
    """Return the stored name of a request's kind: `add`, `resolve`, `move-type` and so on."""
    kind = request_to_sexp(request)[0]
    return kind.decode() if isinstance(kind, bytes) else ""


def from_record(number: int, note: Note, record: Record) -> Step:
    """Return the recorded step. Raises `MalformedError` (`moderator.record`, and errors of its parts)."""
    match parse_canonical(record.after, limits=wide(len(record.after))):
        case (b"step", tuple(request), (b"restored", *entries), tuple(after)):
            pass
        case _:
            raise _malformed("a step must have a request, restored entries, and a state")
    before = parse_canonical(record.before, limits=wide(len(record.before)))
    delta = _delta(_Side.read(before), _Side.read(after))
    step = Step(number, note, request_from_sexp(request), delta, tuple(map(_read_entry, entries)))
    if to_record(step) != record:
        raise _malformed("a step is not in canonical form")
    return step


def image_to_sexp(image: Image) -> SExp:
    """Return the state of a rule base as it is stored."""
    whole = Delta(
        {},
        {event: RuleChange(None, Rooted(parent)) for event, parent in image.types.items()},
        {place: RuleChange(None, entry) for place, entry in image.log.items()},
        {who: RuleChange(None, True) for who in image.away},
        {key: RuleChange(None, wish) for key, wish in image.wishes.items()},
    )
    unsettled = (b"unsettled", *map(_event, sorted(image.unsettled)))
    blocks = (b"blocks", *map(_block, Standings.of(image.rules).blocks()))
    return (b"image", b"%d" % image.steps, unsettled, _state(whole), blocks)


def image_from_sexp(value: SExp) -> Image:
    """Return the stored state. Raises as `from_record`."""
    match value:
        case (b"image", bytes(taken), (b"unsettled", *events), tuple(state), (b"blocks", *blocks)) if (
            taken.isdigit() and len(taken) < 16
        ):
            side = _Side.read(state)
            return Image(
                Standings(map(_read_block, blocks)),
                {event: rooted.parent for event, rooted in side.types.items()},
                side.log,
                frozenset(side.away),
                side.wishes,
                frozenset(map(_read_event, events)),
                int(taken),
            )
    raise _malformed("not the image of a rule base")


def _block(block: RuleBlock) -> SExp:
    stated = ((b"stated", p.encode(), s.encode(), _ids(ids)) for p, s, ids in block.stated)
    listed = ((b"ids", _ids(block.ids)), (b"due", _ids(block.due)), (b"revised", _ids(block.revised)))
    return (_event(block.event), *listed, *stated, block.packed)


def _read_block(value: SExp) -> RuleBlock:
    match value:
        case (event, (b"ids", ids), (b"due", due), (b"revised", revised), *stated, bytes(packed)):
            listed = (_read_ids(ids), _read_ids(due), _read_ids(revised))
            return RuleBlock(_read_event(event), *listed, [*map(_read_stated, stated)], packed)
    raise _malformed("not a block of rules")


def _read_stated(value: SExp) -> tuple[str, str, Sequence[str]]:
    match value:
        case (b"stated", fnc_p, fnc_s, ids):
            return text(fnc_p), text(fnc_s), _read_ids(ids)
    raise _malformed("rules in force on one event type state different functions")


def _ids(ids: Iterable[str]) -> bytes:
    # Ids do not contain spaces.
    return " ".join(ids).encode()


def _read_ids(value: SExp) -> Sequence[str]:
    return text(value).split()


# --- what stands on one side of a step ------------------------------------------------------------------------------


def _state(delta: Delta) -> SExp:
    return (
        b"state",
        (
            b"rules",
            *(standing_to_sexp(each.after) for _, each in sorted(delta.rules.items()) if each.after is not None),
        ),
        (
            b"types",
            *(_hung(event, each.after) for event, each in sorted(delta.types.items()) if each.after is not None),
        ),
        (b"log", *(_entry(entry) for entry in delta.logged)),
        (b"away", *(_who(each) for each, change in sorted(delta.away.items()) if change.after)),
        (b"wishes", *(_wish(each.after) for _, each in sorted(delta.wishes.items()) if each.after is not None)),
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """The rows of the five tables that a step concerns."""

    rules: Mapping[str, RuleState]
    types: Mapping[TypeKey, Rooted]
    log: Mapping[Place, Logged]
    away: Mapping[Principal, bool]
    wishes: Mapping[str, SubscriberRule]

    @classmethod
    def read(cls, body: SExp) -> "_Side":
        standings = [standing_from_sexp(each) for each in _rows(body, b"rules")]
        entries = [_read_entry(each) for each in _rows(body, b"log")]
        wishes = [_read_wish(each) for each in _rows(body, b"wishes")]
        return cls(
            {standing.stated.id: standing for standing in standings},
            dict(_read_hung(each) for each in _rows(body, b"types")),
            {entry.place: entry for entry in entries},
            {_read_who(each): True for each in _rows(body, b"away")},
            {wish.stated.id: wish for wish in wishes},
        )


def _delta(before: _Side, after: _Side) -> Delta:
    return Delta(
        _changes(before.rules, after.rules),
        _changes(before.types, after.types),
        _changes(before.log, after.log),
        _changes(before.away, after.away),
        _changes(before.wishes, after.wishes),
    )


def _changes(before: Mapping[K, T], after: Mapping[K, T]) -> dict[K, RuleChange[T]]:
    return {
        key: RuleChange(before.get(key), after.get(key))
        for key in (*before, *(key for key in after if key not in before))
    }


def _rows(body: SExp, name: bytes) -> tuple[SExp, ...]:
    found = sexp_field(body, name)
    if found is None:
        raise _malformed(f"a state has no `{name.decode()}`")
    return found[1:]


def _wish(wish: SubscriberRule) -> SExp:
    return (wish.status.encode(), wish.stated.to_sexp())


def _read_wish(value: SExp) -> SubscriberRule:
    match value:
        case (bytes(status), tuple(stated)) if status.decode("ascii", "replace") in _WISHED:
            return SubscriberRule(SubscribeRule.from_sexp(stated), RuleStatus(status.decode()))
    raise _malformed("a subscriber's rule must have a status and a statement")


_WISHED: Final = [status for status in RuleStatus if status is not RuleStatus.REJECTED]


def _hung(event: TypeKey, rooted: Rooted) -> SExp:
    return (_event(event),) if rooted.parent is None else (_event(event), _event(rooted.parent))


def _read_hung(value: SExp) -> tuple[TypeKey, Rooted]:
    match value:
        case (event, *parent) if len(parent) <= 1:
            return _read_event(event), Rooted(_read_event(parent[0]) if parent else None)
    raise _malformed("a type has at most one parent")


def _entry(entry: Logged) -> SExp:
    return (_place(entry.place), entry.kind.encode(), *(rule.to_sexp() for rule in entry.rules))


def _read_entry(value: SExp) -> Logged:
    match value:
        case (place, bytes(kind), _, *_) if kind.decode("ascii", "replace") in [*LoggedAs]:
            rules = tuple(PublishRule.from_sexp(rule) for rule in value[2:])
            return Logged(_read_place(place), LoggedAs(kind.decode()), rules)
    raise _malformed("a log entry must have a place, a kind and rules")


# --- requests -------------------------------------------------------------------------------------------------------


def request_to_sexp(request: Request) -> tuple[SExp, ...]:
    """Return a request in the form that is stored and signed."""
    match request:
        case steps.Add(rule):
            return (b"add", rule.to_sexp())
        case steps.StateSubscriberRule(rule):
            return (b"subscribe", rule.to_sexp())
        case steps.Resolve(rule_id, strategy, consents):
            return (b"resolve", rule_id.encode(), strategy.encode(), *map(_who, sorted(consents)))
        case steps.WithdrawRule(rule_id):
            return (b"withdraw", rule_id.encode())
        case steps.Pass():
            return (b"pass",)
        case steps.Leave(publisher):
            return (b"leave", _who(publisher))
        case steps.Return(publisher):
            return (b"return", _who(publisher))
        case steps.AddType(event, parent):
            return (b"add-type", _hung(event, Rooted(parent)))
        case steps.MoveType(event, parent, strategy, consents):
            chosen = () if strategy is None else (strategy.encode(), *map(_who, sorted(consents)))
            return (b"move-type", _hung(event, Rooted(parent)), *chosen)
        case steps.RenameType(event, to):
            return (b"rename-type", _event(event), _event(to))
        case steps.RemoveType(event):
            return (b"remove-type", _event(event))
        case steps.Undo(number, replay):
            return (b"undo", b"%d" % number, *((b"replay",) if replay else ()))


def request_from_sexp(value: SExp) -> Request:
    """Read a request. Raises as `from_record`."""
    match value:
        case (b"resolve", bytes() as rule_id, bytes(strategy), *consents):
            agreed = frozenset(map(_read_who, consents))
            return steps.Resolve(text(rule_id), _read_strategy(strategy), agreed)
        case (b"move-type", hung, bytes(strategy), *consents):
            event, rooted = _read_hung(hung)
            agreed = frozenset(map(_read_who, consents))
            return steps.MoveType(event, rooted.parent, _read_strategy(strategy), agreed)
        case (b"pass",):
            return steps.Pass()
        case (b"rename-type", event, to):
            return steps.RenameType(_read_event(event), _read_event(to))
        case (b"undo", bytes(number), *replay) if number.isdigit() and len(number) < 16 and replay in ([], [b"replay"]):
            return steps.Undo(int(number), bool(replay))
        case (bytes(head), argument) if head in _READERS:
            return _READERS[head](argument)
    raise _malformed("unknown kind of request")


_READERS: Final[Mapping[bytes, Callable[[SExp], Request]]] = {
    b"add": lambda value: steps.Add(PublishRule.from_sexp(value)),
    b"subscribe": lambda value: steps.StateSubscriberRule(SubscribeRule.from_sexp(value)),
    b"withdraw": lambda value: steps.WithdrawRule(text(value)),
    b"leave": lambda value: steps.Leave(_read_who(value)),
    b"return": lambda value: steps.Return(_read_who(value)),
    b"add-type": lambda value: steps.AddType(_read_hung(value)[0], _read_hung(value)[1].parent),
    b"move-type": lambda value: steps.MoveType(_read_hung(value)[0], _read_hung(value)[1].parent),
    b"remove-type": lambda value: steps.RemoveType(_read_event(value)),
}


# --- parts ----------------------------------------------------------------------------------------------------------


def _read_strategy(word: bytes) -> Strategy:
    try:
        return Strategy(word.decode("ascii", "replace"))
    except ValueError as error:
        raise _malformed("unknown strategy") from error


def _event(event: TypeKey) -> SExp:
    return (_who(event.owner), event.name.encode())


def _read_event(value: SExp) -> TypeKey:
    match value:
        case (owner, name):
            return TypeKey(_read_who(owner), text(name))
    raise _malformed("an event type must have an owner and a name")


def _who(principal: Principal) -> SExp:
    return str(principal).encode()


def _read_who(value: SExp) -> Principal:
    return Principal.parse(text(value))


def _place(place: Place) -> SExp:
    return (b"%d" % place[0], b"%d" % place[1])


def _read_place(value: SExp) -> Place:
    match value:
        case (bytes(step), bytes(index)) if (step + index).isdigit() and max(len(step), len(index)) < 16:
            return (int(step), int(index))
    raise _malformed("a place in the log must be two numbers")


def _malformed(message: str) -> MalformedError:
    return MalformedError("moderator.record", message, hint="the record was not written by this version of Penstock")
