"""What the house plan says about restrictions, written down as naively as possible: no compilation, no shortcuts."""

from collections.abc import Callable, Iterable, Mapping

from penstock.errors import EvaluationError, MalformedError
from penstock.guard import Branch
from penstock.model import AttributeId, Event, EventType, Scalar, TransitEvent
from penstock.model.instants import parse_date
from penstock.model.values import Kind, Value, kind_of
from penstock.selector import Selector, evaluate
from penstock.trust.capabilities import Right
from penstock.trust.tags import ANY

Row = Mapping[str, Scalar]
AMBIGUOUS = "ambiguous"


def true(selector: Selector, row: Row) -> bool:
    """Only TRUE is true: not FALSE, not NULL, not an error."""
    try:
        return evaluate(selector, row) is True
    except EvaluationError:
        return False


def covers(branch: Branch, event_type: EventType) -> bool:
    name = event_type.name
    words = (str(name.owner).encode(), name.name.encode(), name.version.encode())
    pattern = branch.types.pattern
    matched = pattern is ANY or (isinstance(pattern, tuple) and words[: len(pattern)] == pattern)
    return matched and branch.types.within <= {event_type.key, *event_type.ancestors}


def equal(found: Scalar, forced: Value) -> bool:
    """Compare as the language does: kinds never mix, except numbers."""
    try:
        kinds = {kind_of(found), kind_of(forced)} if found is not None else set()
    except MalformedError:
        return False
    return (len(kinds) == 1 or kinds == {Kind.INTEGER, Kind.FLOAT}) and found == forced


def in_time(branch: Branch, env: Row) -> bool:
    validity = branch.when.validity
    if validity.not_before is None and validity.not_after is None:
        return True
    try:
        now = env["time"]
        return (validity.not_before is None or parse_date(validity.not_before) <= now) and (  # type: ignore[operator]  # what is not a time raises
            validity.not_after is None or now <= parse_date(validity.not_after)  # type: ignore[operator]  # what is not a time raises
        )
    except (KeyError, TypeError):
        return False


def guarded(branch: Branch, row: Row, env: Row, guards: Mapping[str, Callable[..., object]]) -> bool:
    for name in branch.guards:
        try:
            if guards[name](row, env) is not True:
                return False
        except Exception:  # noqa: BLE001  # whatever raises refuses
            return False
    return True


def passes(branch: Branch, row: Row, env: Row, guards: Mapping[str, Callable[..., object]]) -> bool:
    """Say whether time, condition, selector and guards hold: all but the forced values."""
    return (
        in_time(branch, env)
        and true(branch.when.condition, env)
        and true(branch.where, row)
        and guarded(branch, row, env, guards)
    )


def lists(branch: Branch, attribute: str) -> bool:
    return branch.attributes is None or attribute in branch.attributes


def holding(
    branches: Iterable[Branch],
    event_type: EventType,
    row: Row,
    env: Row,
    guards: Mapping[str, Callable[..., object]],
) -> list[Branch]:
    """Return the branches that hold for a subscriber on an event."""
    return [
        branch
        for branch in branches
        if branch.action is Right.SUBSCRIBE
        and covers(branch, event_type)
        and all(equal(row.get(attribute), value) for attribute, value in branch.forced)
        and passes(branch, row, env, guards)
    ]


def deliver(
    branches: Iterable[Branch],
    event: TransitEvent,
    event_type: EventType,
    question: Selector,
    *,
    env: Row,
    guards: Mapping[str, Callable[..., object]],
) -> dict[str, Scalar] | None:
    """Union of what the holding branches list, the rest null; then the filter, on that alone."""
    held = holding(branches, event_type, event.values, env, guards)
    if not held:
        return None
    whole = event.to_event(event_type)
    view = {a.name: whole[a.name] if any(lists(b, a.id) for b in held) else None for a in event_type.attributes}
    return view if true(question, view) else None


def publish(
    branches: Iterable[Branch],
    event: Event,
    env: Row,
    guards: Mapping[str, Callable[..., object]],
) -> dict[str, Scalar] | str | None:
    """What may go out: a row by attribute ids; None for nothing; `AMBIGUOUS` where a right would have to be guessed."""
    own = {attribute.id: event[attribute.name] for attribute in event.type.attributes}
    stated = {attribute: value for attribute, value in own.items() if value is not None}
    rights: list[tuple[Branch, dict[AttributeId, Value]]] = []
    for branch in branches:
        forced = {attribute: value for attribute, value in branch.forced if attribute in own}
        if branch.action is Right.PUBLISH and covers(branch, event.type) and all(lists(branch, a) for a in forced):
            rights.append((branch, forced))
    if any(forced != rights[0][1] for _, forced in rights):
        rights = [
            (branch, forced)
            for branch, forced in rights
            if all(stated.get(a) is None or equal(stated[a], value) for a, value in forced.items())
        ]
        if not rights or any(
            a in one and not equal(one[a], value)
            for _, one in rights
            for _, other in rights
            for a, value in other.items()
        ):
            return AMBIGUOUS
    parts: list[tuple[Branch, dict[str, Scalar]]] = []
    for branch, forced in rights:
        part: dict[str, Scalar] = {str(a): value for a, value in stated.items() if lists(branch, a)}
        part |= {str(a): value for a, value in forced.items()}
        if passes(branch, part, env, guards):
            parts.append((branch, part))
    while parts:
        whole: dict[str, Scalar] = {}
        for _, part in parts:
            whole |= part
        kept = [(branch, part) for branch, part in parts if passes(branch, whole, env, guards)]
        if len(kept) == len(parts):
            return whole
        parts = kept
    return None
