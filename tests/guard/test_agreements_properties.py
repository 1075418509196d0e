"""What is enforced of an agreement is what the moderator says, for everybody, every type and every publisher."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.guard.agreed_kit import ANN, BOB, EVE, P1, P2, P3, TREE, agreed, agreement, ask, profile, right, types
from tests.moderator.kit import FORMULAS, event
from tests.trust.kit import NOW

from penstock.errors import RefusedError
from penstock.guard import Agreement, AgreementMode, Delivery, Effect, Publication, environment
from penstock.guard.agreements import described
from penstock.model import Event, Principal, Scalar, TransitEvent, TypeKey
from penstock.model.tree import TreeScope
from penstock.moderator.detection.judge import is_true
from penstock.moderator.detection.subscribers import Subscriptions
from penstock.moderator.rules.rules import Mode, PublishRule, Rule, SubscribeRule
from penstock.selector import Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue

HERE = environment(NOW)
PUBLISHERS, SUBSCRIBERS = (P1, P2, P3), (ANN, BOB, EVE)
MAKING: tuple[Selector, ...] = tuple(map(parse, ("TRUE", "company = 'A'", "licensed", "company <> 'B' OR licensed")))
_TYPES = st.sampled_from(sorted(TREE))


@st.composite
def publish_rules(draw: st.DrawFn) -> list[Rule]:
    found: list[Rule] = []
    for number in range(draw(st.integers(1, 5))):
        of = tuple(draw(st.lists(st.sampled_from(PUBLISHERS), min_size=1, max_size=2, unique=True)))
        fnc_p, fnc_s = draw(st.sampled_from(MAKING)), draw(st.sampled_from(FORMULAS[:-1]))
        found.append(PublishRule(f"p{number}", draw(_TYPES), of, of[0], fnc_p, fnc_s))
    for number in range(draw(st.integers(0, 2))):
        of_ = draw(st.sampled_from(SUBSCRIBERS))
        found.append(SubscribeRule(f"s{number}", draw(_TYPES), of_, of_, draw(st.sampled_from(MAKING))))
    return found


@st.composite
def people(draw: st.DrawFn) -> list[SignedValue[ProfileClaim]]:
    """Profiles of all but perhaps one publisher and one subscriber."""
    found = []
    for who in draw(st.permutations(PUBLISHERS))[: draw(st.integers(2, 3))]:
        company = draw(st.sampled_from(["A", "B", None]))
        values = {"licensed": draw(st.booleans())} | ({} if company is None else {"company": company})
        found.append(profile(who, **values))
    for who in draw(st.permutations(SUBSCRIBERS))[: draw(st.integers(2, 3))]:
        role = draw(st.sampled_from(["engineer", "worker", "manager"]))
        found.append(profile(who, role=role, age=draw(st.sampled_from([17, 18, 40]))))
    return found


Known = dict[Principal, dict[str, Scalar]]


def entitled(made: Agreement, known: Known, of: Principal, about: TypeKey) -> bool:
    """The definition word by word: one's own rule gives the right, and everybody's demands hold."""
    tree, literal = made.vocabulary.tree, made.mode is Mode.LITERAL

    def satisfies(rules: Iterable[PublishRule]) -> bool:
        return all(is_true(rule.fnc_p, known[of]) for rule in rules)

    def gives(one: TypeKey, other: TypeKey) -> bool:
        return tree.related(one, other) if literal else tree.reaches(one, other)

    own = [rule for rule in made.publish_rules if of in rule.publishers and gives(rule.event, about)]
    return (
        of in known
        and any(satisfies(rule for rule in made.publish_rules if rule.event == mine.event) for mine in own)
        and satisfies(rule for rule in made.publish_rules if gives(about, rule.event))
    )


def published(of: Principal, about: TypeKey, publication: Publication) -> TransitEvent | None:
    made = Event.of(types()[about].event_type, {"publisher": str(EVE), "noteX": "n"}, id="1", time=NOW)
    try:
        return publication(made, HERE)
    except RefusedError:
        return None


@settings(max_examples=examples(40), deadline=None)
@given(
    publish_rules(), people(), st.sampled_from(TreeScope), st.sampled_from([Mode.SCOPED, Mode.LITERAL]), st.booleans()
)
def test_delivered_is_what_rules_allow(
    rules: list[Rule], claims: list[SignedValue[ProfileClaim]], scope: TreeScope, mode: Mode, both: bool
) -> None:
    made = agreement(*rules, scope=scope, mode=mode, combining=AgreementMode.BOTH if both else AgreementMode.ALONE)
    found, tree = agreed(made, claims), made.vocabulary.tree
    known: Known = {claim.value.of: dict(claim.value.publisher or claim.value.subscriber or {}) for claim in claims}
    oracle = Subscriptions(
        made.vocabulary, rules, {w: d.profile for w, d in described(made, claims).items()}, mode=mode
    )
    deliveries = {}
    for reader in SUBSCRIBERS:
        for about, verified in types().items():
            given_ = [right(reader, about.name, Right.SUBSCRIBE)] if both else []
            decision = ask(found, reader, Right.SUBSCRIBE, verified, *given_)
            assert (reader in known) or decision.effect is Effect.INDETERMINATE
            deliveries[reader, about] = Delivery(decision.restriction, verified.event_type)
    for publisher in PUBLISHERS:
        for about, verified in types().items():
            given_ = [right(publisher, about.name, Right.PUBLISH)] if both else []
            decision = ask(found, publisher, Right.PUBLISH, verified, *given_)
            event_ = published(publisher, about, Publication(decision.restriction, verified.event_type))
            assert (event_ is not None) is entitled(made, known, publisher, about)
            if event_ is None:
                continue
            for reader in SUBSCRIBERS:
                allowed = reader in known and oracle.allow(about, publisher, reader).allowed
                for above in (about, *tree.ancestors(about)):
                    seen = deliveries[reader, above](event_, HERE)
                    assert (seen is not None) is allowed, (publisher, reader, about, above)
                    if seen is not None:
                        assert seen["publisher"] == str(publisher)


@settings(max_examples=examples(30), deadline=None)
@given(publish_rules(), people(), st.sampled_from(TreeScope))
def test_where_events_do_not_say_from_whom_they_are_it_is_all_or_nothing(
    rules: list[Rule], claims: list[SignedValue[ProfileClaim]], scope: TreeScope
) -> None:
    found = agreed(agreement(*rules, scope=scope), claims)
    for reader in (claim.value.of for claim in claims if claim.value.of in SUBSCRIBERS):
        for about in TREE:
            from_ = [one.publisher for one in found.entitled(about)]
            wanted = bool(from_) and all(found.may_receive(about, publisher, reader) for publisher in from_)
            event_ = Event.of(types(told=False)[about].event_type, {"noteX": "n"}).to_transit()
            for above in (about, *found.agreement.vocabulary.tree.ancestors(about)):
                verified = types(told=False)[above]
                decision = ask(found, reader, Right.SUBSCRIBE, verified)
                seen = Delivery(decision.restriction, verified.event_type)(event_, HERE)
                assert (seen is not None) is wanted


def test_types_are_hung_as_the_tests_think() -> None:
    assert {key: verified.event_type.ancestors[:1] for key, verified in types().items()} == {
        key: () if parent is None else (parent,) for key, parent in TREE.items()
    }
    with pytest.raises(KeyError):
        types()[event("nowhere")]
