"""Rules that are over refuse, and never satisfy: what is enforced at an instant, against what the words say."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.guard.agreed_kit import ANN, BOB, OWNING, P1, P2, TREE, agreed, agreement, ask, profile, types
from tests.guard.test_agreements_properties import PUBLISHERS, SUBSCRIBERS, people, publish_rules
from tests.moderator.kit import event, rule
from tests.trust.kit import CURRENT, DAY, FUTURE, NOW, PAST, key

from penstock.guard import Agreements, CapabilityAuthority, Delivery, Effect, EventRequest, decide, environment
from penstock.guard.agreed_capabilities import Short, capabilities
from penstock.guard.agreements import AgreedRules
from penstock.model import Event, Principal, Scalar, TransitEvent, TypeKey
from penstock.model.tree import TreeScope, TypeTree
from penstock.moderator.detection.judge import is_true
from penstock.moderator.rules.rules import Mode, PublishRule, Rule, SubscribeRule
from penstock.selector import Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.certificates import issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, sign_value
from penstock.trust.validity import ALWAYS, Validity

NOBODY = CapabilityAuthority(Credentials())
INSTANTS = tuple(NOW + timedelta(days=days) for days in (-40, -10, 0, 10, 40))
VALIDITIES = (ALWAYS, ALWAYS, CURRENT, PAST, FUTURE, Validity.between(None, NOW), Validity.between(NOW - DAY, None))
A1, X = (types()[event(name)] for name in ("A1", "X"))


@st.composite
def dated_rules(draw: st.DrawFn) -> list[Rule]:
    return [replace(one, validity=draw(st.sampled_from(VALIDITIES))) for one in draw(publish_rules())]


@st.composite
def dated_people(draw: st.DrawFn) -> list[SignedValue[ProfileClaim]]:
    found = [claim.value for claim in draw(people())]
    dates = st.sampled_from((ALWAYS, ALWAYS, ALWAYS, CURRENT))
    return [sign_value(replace(claim, validity=draw(dates)), key(1)) for claim in found]


@dataclass(frozen=True)
class Words:
    """The definitions word by word: everything refuses, and only what is valid satisfies."""

    rules: list[Rule]
    claims: list[SignedValue[ProfileClaim]]
    tree: TypeTree
    mode: Mode
    now: datetime

    def gives(self, one: TypeKey, other: TypeKey) -> bool:
        return self.tree.related(one, other) if self.mode is Mode.LITERAL else self.tree.reaches(one, other)

    def valid(self, rules: Iterable[Rule]) -> list[Rule]:
        return [one for one in rules if one.validity.contains(self.now)]

    def known(self, who: Principal) -> dict[str, Scalar] | None:
        """Return a profile that is true now."""
        for claim in self.claims:
            if claim.value.of == who and claim.value.validity.contains(self.now):
                return dict(claim.value.publisher or claim.value.subscriber or {})
        return None

    def publishes(self, publisher: Principal, about: TypeKey) -> bool:
        profile, made = self.known(publisher), [one for one in self.rules if isinstance(one, PublishRule)]
        own = [one for one in made if publisher in one.publishers and self.gives(one.event, about)]
        if profile is None:
            return False
        return any(
            all(is_true(other.fnc_p, profile) for other in made if other.event == one.event) for one in self.valid(own)
        ) and all(is_true(one.fnc_p, profile) for one in made if self.gives(about, one.event))

    def receives(self, subscriber: Principal, publisher: Principal, about: TypeKey) -> bool:
        profile, theirs = self.known(subscriber), self.known(publisher)
        if profile is None or theirs is None or not self.publishes(publisher, about):
            return False
        restrictions = [one for one in self.rules if isinstance(one, PublishRule) and publisher in one.publishers]
        wishes = [one for one in self.rules if isinstance(one, SubscribeRule) and one.subscriber == subscriber]
        return self.suits(restrictions, about, profile) and (
            self.suits(wishes, about, theirs)
            if any(self.gives(one.event, about) for one in wishes)
            else all(is_true(one.fnc_p, theirs) for one in wishes if self.gives(about, one.event))
        )

    def suits(self, rules: Iterable[Rule], about: TypeKey, profile: dict[str, Scalar]) -> bool:
        def function(one: Rule) -> Selector:
            return one.fnc_s if isinstance(one, PublishRule) else one.fnc_p

        rules = [*rules]
        return all(is_true(function(one), profile) for one in rules if self.gives(about, one.event)) and any(
            is_true(function(one), profile) for one in self.valid(rules) if self.gives(one.event, about)
        )


def event_of(about: TypeKey, publisher: Principal | None) -> TransitEvent:
    """An event as it was published, at whatever time."""
    if publisher is None:
        return Event.of(types(told=False)[about].event_type, {"noteX": "n"}).to_transit()
    return Event.of(types()[about].event_type, {"noteX": "n", "publisher": str(publisher)}).to_transit()


def views(found: AgreedRules, reader: Principal, verified: VerifiedType, now: datetime) -> list[Delivery]:
    """What somebody sees at an instant: asked then, and asked about all times."""
    authority = Agreements((found,)).over(NOBODY)
    asked = (decide(EventRequest(reader, Right.SUBSCRIBE, verified, when), [authority]) for when in (now, None))
    return [Delivery(decision.restriction, verified.event_type) for decision in asked]


@settings(max_examples=examples(40), deadline=None)
@given(
    dated_rules(),
    dated_people(),
    st.sampled_from(TreeScope),
    st.sampled_from([Mode.SCOPED, Mode.SCOPED, Mode.LITERAL]),
    st.sampled_from(INSTANTS),
)
def test_what_is_over_refuses_and_never_satisfies(
    rules: list[Rule], claims: list[SignedValue[ProfileClaim]], scope: TreeScope, mode: Mode, now: datetime
) -> None:
    found = agreed(agreement(*rules, scope=scope, mode=mode), claims)
    tree = found.agreement.vocabulary.tree
    words = Words(rules, claims, tree, mode, now)
    without = replace(words, rules=words.valid(rules))
    able = {about: [one.publisher for one in found.entitled(about)] for about in TREE}
    for about, verified in types().items():
        for publisher in (claim.value.of for claim in claims if claim.value.of in PUBLISHERS):
            request = EventRequest(publisher, Right.PUBLISH, verified, now)
            decision = decide(request, [Agreements((found,)).over(NOBODY)])
            assert (decision.effect is Effect.PERMIT) is words.publishes(publisher, about)
            assert found.may_publish(about, publisher, now) is words.publishes(publisher, about)
    for reader in (claim.value.of for claim in claims if claim.value.of in SUBSCRIBERS):
        for above, verified in types().items():
            told, untold = views(found, reader, verified, now), views(found, reader, types(told=False)[above], now)
            for about in tree.subtree(above):
                seen_of = {publisher: words.receives(reader, publisher, about) for publisher in PUBLISHERS}
                for publisher, wanted in seen_of.items():
                    sent = event_of(about, publisher)
                    assert {view(sent, environment(now)) is not None for view in told} == {wanted}
                    assert publisher not in able[about] or found.may_receive(about, publisher, reader, now) is wanted
                    # Without the rules that are over it would be allowed too.
                    assert not wanted or without.receives(reader, publisher, about)
                whole = bool(able[about]) and all(seen_of[publisher] for publisher in able[about])
                sent = event_of(about, None)
                assert {view(sent, environment(now)) is not None for view in untold} == {whole}


@settings(max_examples=examples(25), deadline=None)
@given(dated_rules(), dated_people(), st.sampled_from(TreeScope), st.sampled_from(INSTANTS), st.booleans())
def test_certificates_end_with_the_rules_that_they_rest_on(
    rules: list[Rule], claims: list[SignedValue[ProfileClaim]], scope: TreeScope, now: datetime, told: bool
) -> None:
    found = agreed(agreement(*rules, scope=scope), claims)
    made = capabilities(found, [verified.event_type for verified in types(told=told).values()])
    tree = found.agreement.vocabulary.tree
    words = Words(rules, claims, tree, Mode.SCOPED, now)
    authority = CapabilityAuthority(Credentials.of(*(issue(statement, OWNING) for statement in made.statements)))
    for reader in SUBSCRIBERS:
        for above, verified in types(told=told).items():
            decision = decide(EventRequest(reader, Right.SUBSCRIBE, verified, now), [authority])
            view = Delivery(decision.restriction, verified.event_type)
            for about in tree.subtree(above):
                able = [one.publisher for one in found.entitled(about)]
                for publisher in able:
                    wanted = words.receives(reader, publisher, about)
                    seen = view(event_of(about, publisher if told else None), environment(now)) is not None
                    assert wanted or not seen
                    if above == about and Short(about, publisher, reader) not in made.short:
                        assert seen is wanted


def over(made: Rule) -> Rule:
    return replace(made, validity=PAST)


def test_a_rule_that_is_over_gives_no_more_than_those_that_hold() -> None:
    # Everybody got A1, until yesterday; engineers get what is below X.
    found = agreed(agreement(rule("r0", "X", "role = 'engineer'"), over(rule("r1", "A1"))))
    assert ask(found, BOB, Right.SUBSCRIBE, A1).effect is Effect.DENY
    decision = ask(found, ANN, Right.SUBSCRIBE, A1)
    assert (decision.effect, decision.because) == (Effect.PERMIT, ("rule:r0",))
    # While it held Bob had them, and not those of X.
    before = decide(EventRequest(BOB, Right.SUBSCRIBE, X, None), [Agreements((found,)).over(NOBODY)])
    (branch,) = before.restriction.branches
    assert (branch.when.validity, branch.only) == (PAST, frozenset({event("A1"), event("A10")}))


def test_a_rule_that_is_over_goes_on_to_refuse() -> None:
    found = agreed(agreement(rule("r0", "X"), over(rule("r1", "A1", "role = 'engineer'"))))
    # Of A10 it never was the last word.
    for who, names in ((ANN, ("A1", "A10")), (BOB, ("A10",))):
        (branch,) = ask(found, who, Right.SUBSCRIBE, A1).restriction.branches
        assert (branch.only, branch.because) == (frozenset(map(event, names)), ("rule:r0",))


def test_a_wish_that_is_over_wants_nothing_more() -> None:
    wish = SubscribeRule("w", event("A1"), ANN, ANN, parse("company = 'B'"))
    both = (rule("r1", "A1"), rule("r2", "A1", of=[P2]))
    assert ask(agreed(agreement(*both, wish)), ANN, Right.SUBSCRIBE, A1).because == ("rule:r2", "rule:w")
    assert ask(agreed(agreement(*both, over(wish))), ANN, Right.SUBSCRIBE, A1).effect is Effect.DENY
    # Another one that holds is as good, but does not make up for what the first refuses.
    wider = SubscribeRule("v", event("X"), ANN, ANN)
    found = agreed(agreement(*both, over(wish), wider))
    assert set(ask(found, ANN, Right.SUBSCRIBE, A1).because) == {"rule:r1", "rule:r2", "rule:v"}
    (view, _) = views(found, ANN, A1, NOW)
    assert [view(event_of(event("A1"), of), environment(NOW)) is not None for of in (P1, P2)] == [False, True]


def test_of_several_rules_each_will_do_in_its_time() -> None:
    rules = [replace(rule(f"r{n}", "A1"), validity=one) for n, one in enumerate((PAST, FUTURE))]
    found = agreed(agreement(*rules))
    authority = Agreements((found,)).over(NOBODY)
    decision = decide(EventRequest(ANN, Right.SUBSCRIBE, A1, None), [authority])
    said = {branch.when.validity: branch.because for branch in decision.restriction.branches}
    assert said == {PAST: ("rule:r0",), FUTURE: ("rule:r1",)}
    made = capabilities(found, [verified.event_type for verified in types().values()])
    assert {one.validity for one in made.statements if one.subject == ANN} == {PAST, FUTURE}


def test_a_publisher_of_whom_nothing_is_known_any_more_gives_nothing() -> None:
    claim = sign_value(replace(profile(P1, company="A").value, validity=PAST), key(1))
    found = agreed(agreement(rule("r", "A1")), [claim, profile(ANN)])
    assert ask(found, ANN, Right.SUBSCRIBE, A1).effect is Effect.DENY
    made = capabilities(found, [verified.event_type for verified in types().values()])
    assert {one.validity for one in made.statements} == {PAST}


def test_a_certificate_ends_with_the_first_rule_on_a_type_below_and_that_is_told() -> None:
    # Upwards, who publishes A1 publishes X; with a right on X come the events of A1.
    found = agreed(agreement(rule("x", "X"), over(rule("a", "A1")), scope=TreeScope.UPWARD))
    made = capabilities(found, [verified.event_type for verified in types().values()])
    assert {one.validity for one in made.statements if one.subject == ANN} == {PAST}
    assert Short(event("X"), P1, ANN) in made.short
    assert Short(event("A1"), P1, ANN) not in made.short
