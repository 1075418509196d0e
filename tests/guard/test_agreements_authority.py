"""How agreements meet certificates, and what they do where something is not known."""

from dataclasses import replace

from tests.guard.agreed_kit import (
    ANN,
    BOB,
    EVE,
    P1,
    P2,
    P3,
    PROFILES,
    agreed,
    agreement,
    ask,
    definition,
    profile,
    right,
    types,
)
from tests.moderator.kit import OWNER, event, rule
from tests.trust.kit import CURRENT, FUTURE, NOW, PAST, key, refused, who

from penstock.guard import AgreementMode, Agreements, CapabilityAuthority, Effect, EventRequest, decide
from penstock.guard.agreements import AgreedRules, AgreementReader, Announced, by_publishers, read_agreement
from penstock.model import AttributeDefinition, AttributeSpec, Kind
from penstock.model.tree import TreeScope
from penstock.moderator.rules.rules import SubscribeRule
from penstock.selector import evaluate, parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type, verify_type
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import sign_value

A1, A10, X = (types()[event(name)] for name in ("A1", "A10", "X"))
RULES = (rule("r1", "A1", "role = 'engineer'", "licensed"), rule("r2", "A1", "role = 'engineer'", "licensed", of=[P2]))
ALONE, BOTH = (
    agreed(agreement(*RULES, combining=combining)) for combining in (AgreementMode.ALONE, AgreementMode.BOTH)
)
PUBLISH, SUBSCRIBE = Right.PUBLISH, Right.SUBSCRIBE
NOBODY = CapabilityAuthority(Credentials())


def test_alone_what_was_agreed_is_the_right() -> None:
    decision = ask(ALONE, P1, PUBLISH, A1)
    assert (decision.effect, decision.because) == (Effect.PERMIT, ("rule:r1",))
    # P2 stated the same rule, and is not what it demands.
    assert ask(ALONE, P2, PUBLISH, A1).effect is Effect.DENY
    assert ask(ALONE, ANN, SUBSCRIBE, A1).because == ("rule:r1",)
    assert ask(ALONE, BOB, SUBSCRIBE, A1).effect is Effect.DENY
    # A certificate adds nothing to it.
    assert ask(ALONE, BOB, SUBSCRIBE, A1, right(BOB, "A1", SUBSCRIBE)).effect is Effect.DENY


def test_a_refusal_says_which_rule_it_is() -> None:
    for of, action, reason in (
        (P2, PUBLISH, f"the profile of {P2.short} does not satisfy fnc_p of rule `r1`: `licensed`"),
        (BOB, SUBSCRIBE, f"the profile of {BOB.short} does not satisfy fnc_s of rule `r1`: `role`"),
    ):
        decision = ask(ALONE, of, action, A1)
        assert decision.effect is Effect.DENY
        (error,) = decision.errors
        assert (error.code, error.source) == ("agreement.not-allowed", "plant")
        assert error.message == f"agreed rules do not let {of.short} {action}: {reason}"
        with refused("guard.denied") as caught:
            decision.require()
        assert reason in caught.value.message
    silent = agreed(agreement())
    assert "has no rule to publish" in ask(silent, P1, PUBLISH, A1).errors[0].message
    assert "nobody may publish `A1`" in ask(silent, ANN, SUBSCRIBE, A1).errors[0].message
    # Certificates alone refuse without a word, and what is allowed has no refusals.
    assert ask(BOTH, ANN, SUBSCRIBE, A1).errors == ()
    assert ask(ALONE, ANN, SUBSCRIBE, A1).errors == ()


def test_both_must_allow() -> None:
    assert ask(BOTH, ANN, SUBSCRIBE, A1).effect is Effect.DENY
    assert ask(BOTH, BOB, SUBSCRIBE, A1, right(BOB, "A1", SUBSCRIBE)).effect is Effect.DENY
    shown = A1.event_type.by_name["noteA1"].id
    certificate = right(ANN, "A1", SUBSCRIBE, attributes=[shown])
    decision = ask(BOTH, ANN, SUBSCRIBE, A1, certificate)
    (branch,) = decision.restriction.branches
    assert branch.attributes == frozenset({shown})
    assert branch.only == frozenset({event("A1"), event("A10")})
    assert set(branch.because) == {certificate.id, "rule:r1"}


def test_rights_of_which_it_does_not_speak_are_as_they_were() -> None:
    for action in (Right.ROUTE, Right.HISTORY, Right.RESTRICTIONS, Right.MANAGE):
        assert ask(BOTH, ANN, action, A1, right(ANN, "A1", action)).effect is Effect.PERMIT
        assert ask(ALONE, ANN, action, A1).effect is Effect.DENY
    elsewhere = agreed(agreement(rule("r", "A2"), tree={event("A2"): None}))
    assert ask(elsewhere, EVE, SUBSCRIBE, A1, right(EVE, "A1", SUBSCRIBE)).effect is Effect.PERMIT


def test_of_whom_nothing_is_known_nothing_is_allowed() -> None:
    everything = agreed(agreement(rule("r", "X", of=[P1, P3]), combining=AgreementMode.ALONE))
    for of, action in ((P3, PUBLISH), (EVE, SUBSCRIBE)):
        decision = ask(everything, of, action, X)
        assert decision.effect is Effect.INDETERMINATE
        assert [problem.code for problem in decision.errors] == ["moderator.unknown-profile"]
    # Who is known as a publisher is not a subscriber without attributes, and the other way round.
    assert ask(everything, P1, SUBSCRIBE, X).effect is Effect.INDETERMINATE
    swapped = agreed(agreement(rule("r", "X", of=[P1, ANN])), PROFILES)
    assert ask(swapped, ANN, PUBLISH, X).effect is Effect.INDETERMINATE


def test_who_publishes_and_subscribes_is_described_as_one() -> None:
    for values, effect in (({"company": "A"}, Effect.PERMIT), ({"company": "B"}, Effect.INDETERMINATE)):
        claim = sign_value(ProfileClaim(P1, OWNER, {"company": "A"}, values), key(1))
        found = agreed(agreement(rule("r", "X")), [claim])
        for action in (PUBLISH, SUBSCRIBE):
            assert ask(found, P1, action, X).effect is effect
    # Company C is one of publishers alone.
    claim = sign_value(ProfileClaim(P1, OWNER, {"company": "C"}, {"company": "C"}), key(1))
    assert ask(agreed(agreement(rule("r", "X")), [claim]), P1, PUBLISH, X).effect is Effect.INDETERMINATE


def test_whose_word_about_profiles_counts() -> None:
    said = [profile(ANN, 3, role="engineer")]
    assert ask(agreed(agreement(*RULES), said), ANN, SUBSCRIBE, A1).effect is Effect.INDETERMINATE
    named = agreement(*RULES, described_by=[who(3)])
    told = [*PROFILES[:1], *said]
    assert ask(agreed(named, told), ANN, SUBSCRIBE, A1).effect is Effect.PERMIT
    # The last word counts, also one that names what nobody has.
    assert ask(agreed(named, [*told, profile(ANN, role="worker")]), ANN, SUBSCRIBE, A1).effect is Effect.DENY
    unknown = [*told, profile(ANN, shoe=43)]
    assert ask(agreed(named, unknown), ANN, SUBSCRIBE, A1).effect is Effect.INDETERMINATE


def test_a_type_below_that_was_not_agreed_on_is_refused() -> None:
    rules = agreed(agreement(rule("r", "A1"), tree={event("A1"): None}))
    assert ask(rules, P1, PUBLISH, A1).effect is Effect.PERMIT
    decision = ask(rules, P1, PUBLISH, A10)
    assert [problem.code for problem in decision.errors] == ["moderator.unknown-type"]
    # Its events do not come with the type above.
    (branch,) = ask(rules, ANN, SUBSCRIBE, A1).restriction.branches
    assert branch.only == frozenset({event("A1")})


def test_profiles_and_rules_that_are_over_or_have_not_begun_give_nothing() -> None:
    for validity, effect in ((CURRENT, Effect.PERMIT), (PAST, Effect.DENY), (FUTURE, Effect.DENY)):
        claim = sign_value(ProfileClaim(ANN, OWNER, None, {"role": "engineer"}, validity), key(1))
        described = agreed(agreement(*RULES), [PROFILES[0], claim])
        stated = agreed(agreement(replace(RULES[0], validity=validity)))
        for rules, of, action in ((described, ANN, SUBSCRIBE), (stated, P1, PUBLISH), (stated, ANN, SUBSCRIBE)):
            assert ask(rules, of, action, A1).effect is effect
            assert validity in rules.validities()
            # Asked about all times it says when.
            always = decide(EventRequest(of, action, A1, None), [Agreements((rules,)).over(NOBODY)])
            assert [branch.when.validity for branch in always.restriction.branches] == [validity]
    # It goes on to bind others until the owner says otherwise.
    over = agreed(agreement(replace(RULES[0], validity=PAST), rule("r2", "A1", of=[P2])))
    assert ask(over, P2, PUBLISH, A1).effect is Effect.DENY


def test_publishing_says_who_publishes() -> None:
    attribute = A1.event_type.by_name["publisher"].id
    (branch,) = ask(ALONE, P1, PUBLISH, A1).restriction.branches
    assert branch.forced == ((attribute, str(P1)),)
    (plain,) = ask(ALONE, P1, PUBLISH, types(told=False)[event("A1")]).restriction.branches
    assert plain.forced == ()


def test_an_attribute_that_cannot_say_who_publishes() -> None:
    made = definition("A1", told=False)
    made = replace(made, attributes=(AttributeDefinition("publisher", "p", AttributeSpec(Kind.INTEGER)),))
    verified = verify_type(sign_type(made, key(1)), NOW)
    for of, action in ((P1, PUBLISH), (ANN, SUBSCRIBE)):
        assert [p.code for p in ask(ALONE, of, action, verified).errors] == ["agreement.publisher-attribute"]


def test_wishes_of_subscribers_are_asked_of_publishers() -> None:
    both = (rule("r1", "A1"), rule("r2", "A1", of=[P2]))
    wish = SubscribeRule("w", event("A1"), ANN, ANN, parse("company = 'B'"))
    (branch,) = ask(agreed(agreement(*both, wish)), ANN, SUBSCRIBE, A1).restriction.branches
    attribute = str(A1.event_type.by_name["publisher"].id)
    assert [evaluate(branch.where, {attribute: str(of)}) for of in (P1, P2)] == [False, True]
    assert branch.because == ("rule:r2", "rule:w")
    # Nobody can tell who published them.
    plain = types(told=False)[event("A1")]
    assert ask(agreed(agreement(*both, wish)), ANN, SUBSCRIBE, plain).effect is Effect.DENY
    assert ask(agreed(agreement(*both)), ANN, SUBSCRIBE, plain).effect is Effect.PERMIT


def test_upwards_a_right_brings_nothing_below_it() -> None:
    rules = agreed(agreement(rule("x", "X"), rule("a", "A1", "role = 'worker'"), scope=TreeScope.UPWARD))
    (branch,) = ask(rules, ANN, SUBSCRIBE, X).restriction.branches
    assert branch.only == frozenset({event("X")})
    assert ask(rules, ANN, SUBSCRIBE, A1).effect is Effect.DENY
    assert {key for b in ask(rules, BOB, SUBSCRIBE, X).restriction.branches for key in b.only or ()} == {
        event("X"),
        event("A1"),
    }


def test_many_publishers_take_several_conditions() -> None:
    crowd = [who(number) for number in range(1000, 1250)]
    conditions = list(by_publishers("publisher", crowd))
    assert len(conditions) == 2
    assert all(any(evaluate(one, {"publisher": str(of)}) for one in conditions) for of in crowd)
    assert not any(evaluate(one, {"publisher": str(EVE)}) for one in conditions)


def test_there_are_as_few_branches_as_can_be() -> None:
    # A1 has one publisher, A2 another one, and A10 both.
    found = agreed(agreement(rule("r", "A1"), rule("s", "A10", of=[P2]), rule("t", "A2", of=[P2])))
    assert len(found.readings(event("X"), ANN)) == 3
    said = {branch.because: branch.only for branch in ask(found, ANN, SUBSCRIBE, X).restriction.branches}
    assert said == {
        ("rule:r",): frozenset({event("A1"), event("A10")}),
        ("rule:s", "rule:t"): frozenset({event("A10"), event("A2")}),
    }


def test_two_agreements_about_a_type_must_both_allow() -> None:
    other = agreed(agreement(rule("other", "A1", "age > 18")))
    found = Agreements((ALONE, other)).over(CapabilityAuthority(Credentials()))
    (branch,) = decide(EventRequest(ANN, SUBSCRIBE, A1, NOW), [found]).restriction.branches
    assert set(branch.because) == {"rule:r1", "rule:other"}


def announced(*signed: object, profiles: tuple[object, ...] = PROFILES) -> Announced:
    agreements = {str(number): one for number, one in enumerate(signed)}
    return Announced(OWNER, agreements, {claim.value.of: claim for claim in profiles})  # type: ignore[arg-type, attr-defined, misc]  # plain


def test_what_owners_announce_is_read_once() -> None:
    reader = AgreementReader()
    signed = sign_value(agreement(*RULES), key(1)).to_sexp()
    first = reader.read([announced(signed)])
    assert reader.read([announced(signed)]).rules[0] is first.rules[0]
    again = reader.read([announced(signed, profiles=PROFILES[:1])])
    assert again.rules[0] is not first.rules[0]
    assert again.rules[0].agreement is first.rules[0].agreement
    assert len({first.revision, again.revision, reader.read([]).revision}) == 3
    assert isinstance(first.rules[0], AgreedRules)


def test_an_agreement_remembers_so_many_decisions() -> None:
    def keeps(**entries: int) -> bool:
        signed = sign_value(agreement(*RULES), key(1)).to_sexp()
        (rules,) = AgreementReader(**entries).read([announced(signed)]).rules
        first = rules.readings(event("A1"), ANN)
        assert first
        rules.readings(event("A10"), ANN)
        return rules.readings(event("A1"), ANN) is first

    assert keeps()
    assert not keeps(entries=1)


def test_of_an_owner_whose_agreement_cannot_be_read_nothing_is_allowed() -> None:
    good = sign_value(agreement(*RULES), key(1)).to_sexp()
    found = AgreementReader().read([announced(good, (b"sequence", (b"agreement",)))])
    certified = found.over(CapabilityAuthority(Credentials.of(right(ANN, "A1", SUBSCRIBE))))
    decision = decide(EventRequest(ANN, SUBSCRIBE, A1, NOW), [certified])
    assert decision.effect is Effect.INDETERMINATE
    assert [problem.code for problem in decision.errors] == ["evolution.malformed"]


def test_agreements_are_their_owners() -> None:
    signed = sign_value(agreement(*RULES), key(1))
    assert read_agreement(signed.to_sexp(), OWNER) == signed.value
    with refused("evolution.foreign-agreement"):
        read_agreement(signed.to_sexp(), who(2))
    with refused("key.bad-signature"):
        read_agreement(replace(signed, signature=bytes(64)).to_sexp(), OWNER)
