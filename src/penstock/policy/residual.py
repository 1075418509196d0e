"""Partial evaluation: what is left of a policy where everything but the event is known.

What is left are selectors over the event's attributes: one is TRUE of an event where the policy permits the request
with that event in it, and only there. Denied, not applicable and not decided are all the same: not permitted. So who
may subscribe is asked once, and each event is asked no more than a comparison or two.

Selectors say less than policies do. What they have no words for is refused (`policy.residual-fragment`), and nothing is
approximated. An attribute that is null has no values, and sources are not asked for it. Where an event has NaN for a
number that is asked for, it is not permitted; where it has a value that its type does not allow, neither.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.values import Kind, Schema
from penstock.policy.combine import P
from penstock.policy.datatypes import DATE_TIME
from penstock.policy.event_attributes import ENVIRONMENT_FACT, EVENT, EventNames, data_type_of
from penstock.policy.formulas import both, either, negated, some
from penstock.policy.lookup import NoSources, Sources
from penstock.policy.policies import Root
from penstock.policy.requests import ENVIRONMENT, RESOURCE, Facts, Key, key_of
from penstock.policy.residual_encode import Encoder
from penstock.policy.residual_formulas import Formula, Variable, apart, too_large
from penstock.policy.residual_known import Knowledge, Unknown
from penstock.policy.residual_policies import Due, Part, Policies
from penstock.policy.residual_selector import UnsaidError, selector_of
from penstock.policy.residual_simplify import Known, simplified
from penstock.policy.results import PolicyId, Told
from penstock.selector import ALWAYS, Selector

_CLOCK: Final = "urn:oasis:names:tc:xacml:1.0:environment:current-dateTime"


@dataclass(frozen=True, slots=True)
class Case:
    """Events that are permitted, the moments at which they are, and what has to be done, and may be, with each."""

    where: Selector
    when: Selector = ALWAYS
    obligations: tuple[Told, ...] = ()
    advice: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True)
class Residual:
    """What is left of a policy: any of its cases permits. Without one, nothing is permitted.

    Obligations that depend on the event make cases of their own. `policies` are those that can permit, and `asked` is
    what is known of the request that was asked for: where none of that changes, neither does what is left.
    """

    cases: tuple[Case, ...]
    policies: tuple[PolicyId, ...]
    asked: frozenset[Key]


def residual(  # noqa: PLR0913  # what is known of a request
    root: Root,
    known: Facts,
    names: EventNames,
    *,
    environment: Schema | None = None,
    sources: Sources | None = None,
    asked: set[Key] | None = None,
) -> Residual:
    """Return what is left of a policy, given all that is known but the event, whose attributes have these names.

    With `environment`, what brokers know of the moment becomes a condition, current-dateTime included. `asked` gathers
    what is asked for, also where that ends in a refusal. Raises `RefusedError`: `policy.residual-fragment` for what
    selectors cannot say, `policy.residual-limit`.
    """
    unknown = {**_of_event(names), **_of_moment(environment or {})}
    knowledge = Knowledge(known, unknown, sources or NoSources(), asked)
    encoder = Encoder(knowledge)
    policies = Policies(encoder)
    part = policies.container(root, ())
    with policies.within(root):
        cases = tuple(_cases(encoder, part))
    return Residual(cases, tuple(dict.fromkeys(part.policies)), frozenset(knowledge.asked))


def _of_event(names: EventNames) -> dict[Key, Unknown]:
    return {
        key_of(RESOURCE, f"{EVENT}{name}", data_type_of(one.spec.kind)): Unknown(
            Variable(str(one.id), one.spec.kind), one.spec
        )
        for name, one in names.attributes.items()
    }


def _of_moment(environment: Schema) -> dict[Key, Unknown]:
    found = {
        key_of(ENVIRONMENT, f"{ENVIRONMENT_FACT}{name}", data_type_of(spec.kind)): Unknown(
            Variable(name, spec.kind, of_moment=True), spec
        )
        for name, spec in environment.items()
    }
    time = environment.get("time")
    if time is not None and time.kind is Kind.TIMESTAMP:
        # Whoever enforces a condition knows what time it is.
        moment = Unknown(Variable("time", time.kind, of_moment=True, certain=True), time)
        found[key_of(ENVIRONMENT, _CLOCK, DATE_TIME)] = moment
        found[key_of(ENVIRONMENT, f"{ENVIRONMENT_FACT}time", DATE_TIME)] = moment
    return found


# --- cases -----------------------------------------------------------------------------------------------------------


def _cases(encoder: Encoder, part: Part) -> Iterator[Case]:
    """Yield what is permitted, apart by what has to be done and by when. Raises `UnsaidError`."""
    permitted = _permitted(encoder, part.child.says[P])
    duties = [due for due in part.dues if due.obligation]
    for formula, obligations in _by_obligations(permitted, duties):
        advice = tuple(
            due.told for due in part.dues if not due.obligation and due.told is not None and _surely(formula, due.when)
        )
        by_moment: dict[Formula, list[Formula]] = {}
        for event, moment in apart(formula, DEFAULT_LIMITS.residual_cases):
            by_moment.setdefault(moment, []).append(event)
        for moment, events in by_moment.items():
            where, when = _short(some(events)), _short(moment)
            if where is not False and when is not False:
                yield Case(selector_of(where), selector_of(when), obligations, advice)


def _permitted(encoder: Encoder, formula: Formula) -> Formula:
    """Return when there is permission, and values that were tried are such that the type of the event allows them."""
    found = _short(formula)
    for variable, having in encoder.allowed.items():
        there = encoder.graph.present(variable)
        others = both(there, *map(negated, having))
        if _short(both(found, others)) is not False:
            found = _short(both(found, either(negated(there), *having)))
    return found


def _by_obligations(permitted: Formula, dues: Sequence[Due]) -> list[tuple[Formula, tuple[Told, ...]]]:
    """Return what is permitted, apart by what has to be done. Raises `UnsaidError`, `RefusedError`."""
    found: list[tuple[Formula, tuple[Told, ...]]] = [] if permitted is False else [(permitted, ())]
    for due in dues:
        further: list[tuple[Formula, tuple[Told, ...]]] = []
        for formula, told in found:
            with_it, without = _short(both(formula, due.when)), _short(both(formula, negated(due.when)))
            if with_it is not False:
                if due.told is None:
                    raise UnsaidError("an obligation that tells of the event")
                further.append((with_it, (*told, due.told)))
            if without is not False:
                further.append((without, told))
        if len(further) > DEFAULT_LIMITS.residual_cases:
            raise too_large()
        found = further
    return found


def _surely(formula: Formula, when: Formula) -> bool:
    return _short(both(formula, negated(when))) is False


def _short(formula: Formula) -> Formula:
    return simplified(formula, Known())
