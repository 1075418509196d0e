"""Proposals: all ways to settle a conflict, smallest change first, each with its effects; and consents to them.

A proposal that opens an event type to everybody comes after all that do not. Nothing is applied here. Each proposal
names who has to agree: a rule that would demand less of others than its publisher stated needs that publisher's
consent; a rule that would demand more does not.

    (moderator-consent (book <digest>) (by <principal>) (to <digest>) (since <steps>) (until <date>) [(for <poll>)])

A consent is to one thing: a resolution with all the forms that it puts in force, or a request as it is written. It
counts for one step: it is used up as soon as a step with that digest comes after `since`, the number of steps that the
rule base had when the consent was given. So a replayed or late consent has no effect.

A consent that is given in a poll is for that poll: it counts for the step that the moderator requests in the poll's
name, with the votes that chose it. It is useless to anybody else who has seen the vote.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, ClassVar, Final, TypeAlias

from penstock.codec.sexp import Named, SExp
from penstock.crypto import digest
from penstock.errors import EvaluationError, MalformedError
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.records import request_to_sexp
from penstock.moderator.detection.judge import in_list_order
from penstock.moderator.rules.rules import (
    AttributeList,
    ConflictKind,
    Mode,
    PublishRule,
    Rule,
    RuleFunction,
    listed,
    parts,
)
from penstock.moderator.rules.steps import (
    Delta,
    Logged,
    MoveType,
    Request,
    Resolve,
    RuleState,
    RuleStatus,
    Step,
    Strategy,
    Undo,
)
from penstock.selector import ALWAYS, Selector, conjunction, evaluate
from penstock.trust.signed import DIGEST, Claim

# ----------------------------------------------------------------------------------------------------------------------
# Strategies: which rules would change, and how (paper 1, section IV).
#
# Each strategy examines the conflicts of a candidate and returns what all rules involved would have to state. The rule
# base then decides whether these forms fit, together with all rules above and below. A resolution is all or nothing.


Forms: TypeAlias = Mapping[str, PublishRule]
"""New forms of rules, by id, including the candidate."""


def resolve(base: RuleBase, candidate: PublishRule, strategy: Strategy) -> Forms | None:
    """Return the forms that a strategy would put in force; None if it is not possible.

    Raises what `Detector.conflicts` raises.
    """
    base.detector.conflicts(candidate)
    try:
        forms = _STRATEGIES[strategy](base, candidate)
    except MalformedError:
        # Together the parts are contradictory, too large, or not a list: this strategy is not possible.
        return None
    with base.draft() as draft:
        return forms if draft.fits(standings(base, candidate, forms)) else None


def standings(base: RuleBase, candidate: PublishRule, forms: Forms) -> dict[str, RuleState]:
    """Return the status of rules once their forms are in force."""
    stated = {rule_id: base.standings[rule_id].stated for rule_id in forms if rule_id != candidate.id}
    stated[candidate.id] = candidate
    return {rule_id: RuleState(stated[rule_id], RuleStatus.IN_FORCE, form) for rule_id, form in forms.items()}


def _add(base: RuleBase, candidate: PublishRule) -> Forms:
    """Add attributes (Algorithms 2 and 3).

    (1) The candidate takes on the others' demands: on the same event type, and on types that the scope makes it obey.
    (2) All rules on the same event type state that, and (3) rules that the scope makes obey the candidate take on the
    demands that they lack.
    """
    # (1) Added demands can cause further conflicts.
    form, conflicts = candidate, base.detector.conflicts(candidate)
    for _ in range(_ROUNDS):
        if not any(conflict.missing for conflict in conflicts):
            break
        for conflict in conflicts:
            form = _with(base, form, conflict.function, conflict.missing)
        conflicts = base.detector.conflicts(form)
    # (2) Rules on one event type state the same.
    forms = {form.id: form} | _agreeing(base, form)
    # (3) All of them, otherwise the rule base refuses it.
    for conflict in conflicts:
        if conflict.kind is not ConflictKind.SAME:
            for rule_id in conflict.rules:
                rule = forms.get(rule_id, base.detector.rules[rule_id])
                forms[rule_id] = _with(base, rule, conflict.function, conflict.extra)
    return forms


def _delete(base: RuleBase, candidate: PublishRule) -> Forms:
    """Delete attributes (Algorithm 4): the candidate, and the rules it conflicts with, keep their common demands.

    A deleted demand may have implied another one, which is then not common either.
    """
    form, conflicts = candidate, base.detector.conflicts(candidate)
    for _ in range(_ROUNDS):
        if not any(conflict.extra for conflict in conflicts):
            break
        for conflict in conflicts:
            if conflict.extra:
                form = _common(base, form, base.detector.rules[conflict.rules[0]], conflict.function)
        conflicts = base.detector.conflicts(form)
    forms = {form.id: form} | _agreeing(base, form)
    for conflict in conflicts:
        if conflict.kind is not ConflictKind.SAME:
            for rule_id in conflict.rules:
                rule = forms.get(rule_id, base.detector.rules[rule_id])
                forms[rule_id] = _common(base, rule, form, conflict.function)
    return forms


def _follow(base: RuleBase, candidate: PublishRule) -> Forms:
    """Change only the candidate: to the form in force on its event type, otherwise to what the others allow."""
    agreed = base.on(candidate.event)
    if agreed:
        return {candidate.id: replace(candidate, fnc_p=agreed[0].fnc_p, fnc_s=agreed[0].fnc_s)}
    form = candidate
    for _ in range(_ROUNDS):
        conflicts = base.detector.conflicts(form)
        for conflict in conflicts:
            form = _with(base, form, conflict.function, conflict.missing)
            form = _without(base, form, conflict.function, conflict.extra)
        if not conflicts:
            break
    return {candidate.id: form}


#: lists that differ in bounds, and additions that conflict with deletions, could cycle indefinitely
_ROUNDS: Final = 4
_STRATEGIES: Final[Mapping[Strategy, Callable[[RuleBase, PublishRule], Forms]]] = {
    Strategy.ADD: _add,
    Strategy.DELETE: _delete,
    Strategy.FOLLOW: _follow,
}


def _agreeing(base: RuleBase, form: PublishRule) -> dict[str, PublishRule]:
    """Return the rules on the event type of a form, changed to state the same."""
    return {rule.id: replace(rule, fnc_p=form.fnc_p, fnc_s=form.fnc_s) for rule in base.on(form.event)}


def function_of(rule: PublishRule, function: RuleFunction) -> Selector:
    """Return one of the functions of a rule."""
    return rule.fnc_p if function is RuleFunction.P else rule.fnc_s


def stating(base: RuleBase, rule: PublishRule, function: RuleFunction, demanded: Iterable[Selector]) -> PublishRule:
    """Return a rule with another function: the conjunction of these parts, written as a list if possible."""
    selector = conjunction(*demanded)
    listed = AttributeList.from_selector(selector)
    if listed is not None and (base.mode is Mode.ALGORITHM or len(listed.entries) == len(parts(selector))):
        selector = listed.selector
    return replace(rule, fnc_p=selector) if function is RuleFunction.P else replace(rule, fnc_s=selector)


def _with(base: RuleBase, rule: PublishRule, function: RuleFunction, added: tuple[Selector, ...]) -> PublishRule:
    if not added:
        return rule
    return stating(base, rule, function, (*parts(function_of(rule, function)), *added))


def _common(base: RuleBase, rule: PublishRule, other: PublishRule, function: RuleFunction) -> PublishRule:
    """Return a rule that demands, in one function, only the common demands of itself and another."""
    one, two = function_of(rule, function), function_of(other, function)
    if base.mode is Mode.ALGORITHM:
        return stating(base, rule, function, in_list_order(listed(one) & listed(two)))
    kept = [part for part in parts(one) if base.judge.implies(function, two, part).holds]
    return stating(
        base, rule, function, (*kept, *(part for part in parts(two) if base.judge.implies(function, one, part).holds))
    )


def _without(base: RuleBase, rule: PublishRule, function: RuleFunction, deleted: tuple[Selector, ...]) -> PublishRule:
    if not deleted:
        return rule
    texts = {part.text for part in deleted}
    demanded = parts(function_of(rule, function))
    if base.mode is Mode.ALGORITHM:
        # The detector names the entries of a list; the function may be written differently.
        listed = AttributeList.from_selector(function_of(rule, function))
        demanded = () if listed is None else tuple(entry.selector for entry in listed.entries)
    return stating(base, rule, function, (part for part in demanded if part.text not in texts))


# ----------------------------------------------------------------------------------------------------------------------
# Proposals, smallest change first.


@dataclass(frozen=True, slots=True)
class Revision:
    """One rule, before and after; for the candidate, as stated and as it would be."""

    before: PublishRule
    after: PublishRule

    @property
    def opened(self) -> bool:
        """Whether everybody satisfies a function after, but not before."""
        both = ((function_of(self.before, each), function_of(self.after, each)) for each in RuleFunction)
        return any(before != ALWAYS and after == ALWAYS for before, after in both)

    def diff(self) -> Iterator[str]:
        """Yield removed and added parts, line by line."""
        for function in RuleFunction:
            old, new = (parts(function_of(rule, function)) for rule in (self.before, self.after))
            yield from (f"- {function}: {part.text}" for part in old if part not in new)
            yield from (f"+ {function}: {part.text}" for part in new if part not in old)


@dataclass(frozen=True, slots=True)
class Resolution:
    """One proposal."""

    strategy: Strategy
    forms: Forms
    #: the rules that change, the candidate first, then by event type and id
    revisions: tuple[Revision, ...]
    #: rules in force that change
    touched: int
    #: publishers whose rule would admit a profile that it admits neither now nor as stated
    relaxed: frozenset[Principal]
    #: the ids of these rules
    wider: frozenset[str] = frozenset()
    #: how many known subscribers gain and lose events, counted for each rule that changes
    gained: int = 0
    lost: int = 0

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The size of the change: types opened to everybody, then rules in force, subscribers, parts of functions."""
        lines = sum(1 for revision in self.revisions for _ in revision.diff())
        return (sum(1 for revision in self.revisions if revision.opened), self.touched, self.gained + self.lost, lines)

    def diff(self) -> str:
        """Return the rules that change, with removed and added parts."""
        return "\n".join(
            f"{revision.before.event.name} {revision.before.id}\n" + "\n".join(f"  {line}" for line in revision.diff())
            for revision in self.revisions
        )


def propose(base: RuleBase, candidate: PublishRule, subscribers: Sequence[Profile] = ()) -> tuple[Resolution, ...]:
    """Return all proposals to put a conflicting candidate in force, smallest change first.

    Of strategies with the same result, only the first is returned.

    Raises what `Detector.conflicts` raises.
    """
    found: list[Resolution] = []
    for strategy in Strategy:
        forms = resolve(base, candidate, strategy)
        if forms is None:
            continue
        resolution = _resolution(base, candidate, strategy, forms, subscribers)
        if not any(other.revisions == resolution.revisions for other in found):
            found.append(resolution)
    return tuple(sorted(found, key=lambda resolution: resolution.order))


def find(base: RuleBase, candidate: PublishRule, strategy: Strategy) -> Resolution | None:
    """Return the proposal of one strategy; None if it is not possible. Raises as `propose`."""
    forms = resolve(base, candidate, strategy)
    return None if forms is None else _resolution(base, candidate, strategy, forms, ())


def _resolution(
    base: RuleBase, candidate: PublishRule, strategy: Strategy, forms: Forms, subscribers: Sequence[Profile]
) -> Resolution:
    others = sorted(
        (form for form in forms.values() if form.id != candidate.id), key=lambda form: (form.event, form.id)
    )
    revisions = [
        Revision(before, after)
        for before, after in (
            (candidate, forms[candidate.id]),
            *((base.detector.rules[form.id], form) for form in others),
        )
        if before != after
    ]
    return weigh(base, strategy, forms, revisions, subscribers)


def weigh(
    base: RuleBase,
    strategy: Strategy,
    forms: Forms,
    revisions: Sequence[Revision],
    subscribers: Sequence[Profile] = (),
) -> Resolution:
    """Return a proposal with its effects: which rules change, who has to agree, and how many gain and lose."""
    wider = [
        revision.before
        for revision in revisions
        if not implies(base, revision.after, revision.before)
        and not implies(base, revision.after, _stated(base, revision.before))
    ]
    relaxed = frozenset().union(*map(whose, wider))
    gained, lost = _count(revisions, subscribers)
    touched = sum(1 for revision in revisions if revision.before.id in base.detector.rules)
    ids = frozenset(rule.id for rule in wider)
    return Resolution(strategy, forms, tuple(revisions), touched, relaxed, ids, gained, lost)


def relaxed_by(base: RuleBase, delta: Delta) -> frozenset[Principal]:
    """Return the principals whose rules would admit a profile that they admit neither now nor as stated."""
    found: set[Principal] = set()
    for change in delta.rules.values():
        before, after = change.before, change.after
        if after is None or after.form is None or implies(base, after.form, after.stated):
            continue
        if before is None or before.form is None or not implies(base, after.form, before.form):
            found |= whose(after.stated)
    return frozenset(found)


def tightened_by(base: RuleBase, delta: Delta) -> frozenset[Principal]:
    """Return the authors of rules in force whose new form excludes a profile that they admit now and as stated."""
    changed = ((change.before, change.after) for change in delta.rules.values())
    return frozenset(
        after.stated.stated_by
        for before, after in changed
        if before is not None and before.form is not None and after is not None and after.form is not None
        if not implies(base, before.form, after.form) and not implies(base, after.stated, after.form)
    )


def whose(rule: PublishRule) -> frozenset[Principal]:
    """Return all principals that have to agree if a rule is relaxed."""
    return rule.speakers


def _stated(base: RuleBase, rule: PublishRule) -> PublishRule:
    """Return the stated form of a rule in force; a candidate is its own stated form."""
    standing = base.standings.get(rule.id)
    return rule if standing is None or standing.form is None else standing.stated


def implies(base: RuleBase, one: PublishRule, other: PublishRule) -> bool:
    """Return whether the functions of one rule certainly imply those of the other."""
    return all(
        base.judge.implies(function, function_of(one, function), function_of(other, function)).holds
        for function in RuleFunction
    )


def _count(revisions: Iterable[Revision], subscribers: Sequence[Profile]) -> tuple[int, int]:
    gained = lost = 0
    for revision in revisions:
        for subscriber in subscribers:
            before, after = admits(revision.before.fnc_s, subscriber), admits(revision.after.fnc_s, subscriber)
            gained += after and not before
            lost += before and not after
    return gained, lost


def admits(function: Selector, profile: Profile) -> bool:
    """Return whether a profile satisfies a function; unknown means no."""
    try:
        return evaluate(function, profile.values) is True
    except EvaluationError:
        return False


# ----------------------------------------------------------------------------------------------------------------------
# Heuristics: which log entry is restored first if several fit (paper 1, section V-B).
#
# The paper takes the newest and mentions others. It also restores rules that their own publishers had withdrawn
# (Example 3); here only `PAPER` does so.


Key: TypeAlias = Callable[[RuleBase, Logged, Sequence[Profile]], tuple[int, ...]]
"""The sort key of entries: the least comes first."""


@dataclass(frozen=True, slots=True)
class Heuristic:
    """An order of the log, and whether withdrawn rules are restored."""

    name: str
    key: Key
    #: withdrawn rules are restored too, and rejected requests are resolved by adding attributes
    revive: bool = False

    def ordered(self, base: RuleBase, entries: Iterable[Logged], subscribers: Sequence[Profile] = ()) -> list[Logged]:
        """Return entries in the order in which they are tried."""
        return sorted(entries, key=lambda entry: self.key(base, entry, subscribers))


def _newest(_base: RuleBase, entry: Logged, _subscribers: Sequence[Profile]) -> tuple[int, ...]:
    step, index = entry.place
    return (-step, -index)


def _oldest(_base: RuleBase, entry: Logged, _subscribers: Sequence[Profile]) -> tuple[int, ...]:
    return entry.place


def _most_subscribers(base: RuleBase, entry: Logged, subscribers: Sequence[Profile]) -> tuple[int, ...]:
    admitted = sum(admits(entry.rules[0].fnc_s, subscriber) for subscriber in subscribers)
    return (-admitted, *_newest(base, entry, subscribers))


def _fewest_changes(base: RuleBase, entry: Logged, subscribers: Sequence[Profile]) -> tuple[int, ...]:
    changed = [rule for rule in entry.rules if base.detector.rules.get(rule.id) != rule]
    pieces = 0
    for rule in changed:
        now = base.detector.rules.get(rule.id)
        before = set() if now is None else {*parts(now.fnc_p), *parts(now.fnc_s)}
        pieces += len(before ^ {*parts(rule.fnc_p), *parts(rule.fnc_s)})
    return (len(changed), pieces, *_newest(base, entry, subscribers))


NEWEST: Final = Heuristic("newest", _newest)
OLDEST: Final = Heuristic("oldest", _oldest)
MOST_SUBSCRIBERS: Final = Heuristic("most-subscribers", _most_subscribers)
FEWEST_CHANGES: Final = Heuristic("fewest-changes", _fewest_changes)
PAPER: Final = Heuristic("paper", _newest, revive=True)

HEURISTICS: Final = {
    heuristic.name: heuristic for heuristic in (NEWEST, OLDEST, MOST_SUBSCRIBERS, FEWEST_CHANGES, PAPER)
}


@dataclass(frozen=True, slots=True)
class Consent(Claim):
    """A principal's consent to somebody else's request."""

    HEAD: ClassVar = b"moderator-consent"
    SIGNER: ClassVar = "by"
    #: the digest of the rule base's founding
    book: Annotated[bytes, DIGEST] = field(repr=False)
    by: Principal
    #: the subject: `resolution_digest` or `request_digest`
    to: Annotated[bytes, DIGEST] = field(repr=False)
    #: the number of steps of the rule base
    since: int
    until: datetime
    #: the id of the poll that it was given in; None if it was given outside a poll
    poll: Annotated[bytes | None, DIGEST, Named(b"for")] = field(default=None, repr=False)


def poll_reason(poll: bytes) -> str:
    """Return the reason that a moderator gives for the step that a poll chose."""
    return f"poll {poll.hex()}"


def resolution_digest(rule_id: str, strategy: Strategy, forms: Mapping[str, PublishRule]) -> bytes:
    """Return the digest that a consent to a proposal names. `forms` has the candidate and all rules that change."""
    written = (form.to_sexp() for _, form in sorted(forms.items()))
    return digest((b"resolution", rule_id.encode(), strategy.encode(), *written))


def request_digest(request: Request) -> bytes:
    """Return the digest that a consent to a request names."""
    return digest((b"request", request_to_sexp(request)))


def subject_of(step: Step) -> bytes:
    """Return the digest that the consents for a step must name."""
    match step.request:
        case Resolve(rule_id, strategy):
            return resolution_digest(rule_id, strategy, _forms(step))
        case MoveType(_, _, Strategy()) as move:
            # The list of those who agree is not part of what they agree to.
            asked = request_to_sexp(replace(move, consents=frozenset()))
            return digest((b"move", asked, *(form.to_sexp() for _, form in sorted(_forms(step).items()))))
        case Undo() as undo:
            # Undoing restores or removes agreed forms, and rules.
            return digest(
                (
                    b"undo",
                    request_to_sexp(undo),
                    *(form.to_sexp() for _, form in sorted(_forms(step).items())),
                    *_named(b"ceasing", step.delta.ceasing),
                    *_named(b"rising", step.delta.rising),
                )
            )
        case request:
            return request_digest(request)


def _named(how: bytes, rules: Mapping[str, Rule]) -> tuple[SExp, ...]:
    """Return the ids of rules that a request concerns, if any."""
    return ((how, *(rule_id.encode() for rule_id in sorted(rules))),) if rules else ()


def _forms(step: Step) -> Mapping[str, PublishRule]:
    """Return the forms that a step puts in force."""
    changed = ((key, change.after) for key, change in step.delta.rules.items())
    return {key: after.form for key, after in changed if after is not None and after.form is not None}
