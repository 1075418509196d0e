"""Policies as a source of authority: what each way of combining allows, and that whatever is in doubt is refused."""

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import NoReturn

import pytest
from tests.guard import agreed_kit as kit
from tests.guard.london import (
    BILLING,
    CAMERA,
    CCS,
    LOCATION,
    MALLORY,
    MET,
    NOW,
    PITO,
    PLATE,
    SMITH,
    TIMESTAMP,
    TYPE,
    V4799,
    V8516,
    grant,
    sighting,
    transit,
)
from tests.guard.policy_kit import ALONE, BOTH, EITHER, RESTRICT, ask, police, policy, shown
from tests.moderator.kit import event, rule
from tests.trust.kit import NOW as AGREED
from tests.trust.kit import refused

from penstock.errors import RefusedError
from penstock.guard import (
    Agreements,
    CapabilityAuthority,
    Delivery,
    Effect,
    Publication,
    decide,
    environment,
)
from penstock.guard.decision import EventRequest, NetworkRequest
from penstock.guard.enforce import OwnGuard, Rules
from penstock.guard.policies import NO_POLICIES, Policies, PolicyCombining, Residuals
from penstock.model import (
    AttributeDefinition,
    AttributeSpec,
    Kind,
    NetworkName,
    Scalar,
    TransitEvent,
    TypeDefinition,
    TypeName,
)
from penstock.policy.language.policies import PolicyReference, PolicySet, Root
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType, sign_type, verify_type

EVERYTHING = {"numberplate": "AE05 XYZ", "timestamp": NOW, "location": "Victoria"}
DENIED = Effect.DENY
OWNERS = {"owners": [PITO.principal]}


def made(*roots: Root, combining: PolicyCombining = BOTH, **more: object) -> Policies:
    return Policies.of(*roots, combining=combining, **(OWNERS | more))  # type: ignore[arg-type]  # of `Policies.of`


# What the policy of each says about an event at Victoria, and about one elsewhere.
SAYS = {
    "Permit": ("Permit", "Permit", policy("permit")),
    "Deny": ("Deny", "Deny", policy("deny")),
    "NotApplicable": ("NotApplicable", "NotApplicable", policy('permit target clause does == "fly"')),
    "Indeterminate": ("Indeterminate", "Indeterminate", policy('permit condition stranger[required] == "x"')),
    "Permit here": ("Permit", "NotApplicable", policy('permit target clause place == "Victoria"')),
    "Deny here": ("Deny", "NotApplicable", policy('deny target clause place == "Victoria"')),
    "Deny elsewhere": (
        "Permit",
        "Deny",
        policy('permit target clause place == "Victoria"', "deny", apply="first-applicable"),
    ),
    "Doubt here": (
        "Indeterminate",
        "Permit",
        policy('deny condition place == "Victoria" and stranger[required] == "x"', "permit"),
    ),
    "By plate": ("Permit", "Deny", policy('permit condition place == "Victoria" and plate == "AE05 XYZ"', "deny",
                                          apply="permit-overrides")),
}  # fmt: skip
OTHERS = {"none": (MALLORY, {}), "all": (MET, EVERYTHING), "some": (BILLING, {"numberplate", "timestamp"})}


def allowed(combining: PolicyCombining, others: set[str], says: str) -> set[str]:
    """Return what should be seen, by the table in the module."""
    everything, permits, tolerates = set(EVERYTHING), says == "Permit", says in {"Permit", "NotApplicable"}
    match combining:
        case PolicyCombining.BOTH:
            return others if permits else set()
        case PolicyCombining.RESTRICT:
            return others if tolerates else set()
        case PolicyCombining.ALONE:
            return everything if permits else set()
        case PolicyCombining.EITHER:
            return (everything if permits else set()) | (others if tolerates else set())


def unsaid(*_: object, **_more: object) -> NoReturn:
    raise RefusedError("policy.residual-fragment", "no selector says it")


@pytest.mark.parametrize(("combining", "name", "who"), [*product(PolicyCombining, SAYS, OTHERS)])
def test_combining(combining: PolicyCombining, name: str, who: str) -> None:
    here, elsewhere, root = SAYS[name]
    asking, others = OTHERS[who]
    policies = made(root, combining=combining)
    answers = [ask(policies, asking), ask(policies, asking, now=None)]
    # The same, where a broker has to ask the policy about each event.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Residuals, "restriction", unsaid)
        answers.append(ask(policies, asking))
    for decision, (place, says) in product(answers, (("Victoria", here), ("Dover", elsewhere))):
        seen = shown(decision, location=place)
        assert set(seen or ()) == allowed(combining, set(others), says)


def test_attributes_are_told_apart() -> None:
    """Only the police see the plate, whatever certificates say."""
    rules = ('deny target clause part == "numberplate" condition not ("police" in role)', "permit")
    plates = made(policy(*rules))
    assert set(shown(ask(plates, MET)) or ()) == {"timestamp", "location"}
    assert set(shown(ask(plates, BILLING)) or ()) == {"timestamp"}
    assert shown(ask(plates, MET, bag=police(MET, PITO))) == EVERYTHING
    # By its id it is the same attribute, and by a name that another version has for it.
    by_id = policy(f'deny target clause part == "{PLATE}"', "permit")
    assert set(shown(ask(made(by_id), MET)) or ()) == set(EVERYTHING)
    old = ask(plates, MET, type_=V4799, known=[V4799, V8516])
    assert old.restriction.branches[0].attributes == frozenset({TIMESTAMP, LOCATION})


def test_a_name_that_an_older_version_has_does_not_get_around_a_policy() -> None:
    elsewhere = made(policy('permit condition plate[required] == "AE05 XYZ"'))
    # Of version 4799 alone nobody knows that `license-plate` is meant.
    assert shown(ask(elsewhere, MET)) == EVERYTHING
    assert (
        ask(elsewhere, MET, type_=V4799).effect is not Effect.PERMIT or shown(ask(elsewhere, MET, type_=V4799)) is None
    )
    known = ask(elsewhere, MET, type_=V4799, known=[V4799, V8516])
    assert known.effect is Effect.PERMIT


def test_reasons_name_policies_and_certificates() -> None:
    decision = ask(made(policy("permit")), MET)
    assert "policy:t.plates" in decision.because
    assert set(ask(Policies(), MET).because) < set(decision.because)
    roles = made(policy('permit target clause role == "police"'))
    bag = police(MET, PITO)
    assert bag.certificates[-1].id in ask(roles, MET, bag=bag).because


@pytest.mark.parametrize(
    ("rule", "effect", "code"),
    [
        ("deny", DENIED, "policies.not-permitted"),
        ('permit condition stranger[required] == "x"', Effect.INDETERMINATE, "policies.indeterminate"),
        ("permit on permit { obligation burn }", Effect.INDETERMINATE, "policies.obligation"),
    ],
)
def test_refusals_say_why_and_no_word_of_the_policy(rule: str, effect: Effect, code: str) -> None:
    decision = ask(made(policy(rule)), MET)
    assert (decision.effect, decision.errors[0].code, decision.errors[0].source) == (effect, code, "t.plates")
    assert '"x"' not in decision.errors[0].message
    assert ask(made(policy(rule), combining=ALONE), MET).effect is effect


def test_obligations() -> None:
    kept = "permit on permit { obligation 'urn:penstock:obligation:record' advice anything }".replace("'", '"')
    assert shown(ask(made(policy(kept)), MET)) == EVERYTHING
    # An obligation on denial is with who asked; where it depends on the event, so does what is refused.
    some = policy(
        'permit target clause place == "Dover" on permit { obligation burn }', "permit", apply="first-applicable"
    )
    answers = [ask(made(some), MET)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Residuals, "restriction", unsaid)
        answers.append(ask(made(some), MET))
    for decision in answers:
        assert shown(decision) == EVERYTHING
        assert shown(decision, location="Dover") is None


def test_the_moment_is_that_of_the_event() -> None:
    by_day = ask(made(policy("permit condition hour >= 9 and hour < 17")), MET)
    timed = made(policy('permit condition now < "17:00:00Z":time'))
    by_clock = ask(timed, MET)
    for decision in (by_day, by_clock):
        assert shown(decision) == EVERYTHING
        assert shown(decision, now=NOW + timedelta(hours=7)) is None

    assert by_day.restriction.branches[0].when.condition.attributes == {"hour"}
    # Of the time of day no selector speaks: a broker asks the policy, and about all times there is no answer.
    assert by_clock.restriction.branches[0].guards
    history = ask(timed, MET, now=None)
    assert (history.effect, history.errors[0].code) == (Effect.INDETERMINATE, "policies.each-event")


def test_what_a_guard_cannot_know_is_refused() -> None:
    timed = ask(made(policy('permit condition now < "17:00:00Z":time')), MET)
    (guard,) = timed.restriction.branches[0].guards
    assert isinstance(guard, OwnGuard)
    assert guard.ask({}, {}) is False
    doubt = ask(made(policy('permit condition now < "17:00:00Z":time and stranger[required] == "x"')), MET)
    told: list[str] = []
    delivery = Delivery(doubt.require(), TYPE, rules=Rules(on_problem=lambda code, _because: told.append(code)))
    assert delivery(transit(), environment(NOW)) is None
    assert told == ["guard.failed"]


def test_publishing() -> None:
    plates = made(policy('deny target clause place == "Dover"', 'deny target clause part == "location"', "permit"))
    decision = ask(plates, CCS, Right.PUBLISH)
    publication = Publication(decision.require(), TYPE)
    published = publication(sighting(), environment(NOW))
    assert set(published.values) == {PLATE, TIMESTAMP}
    # The camera may say where it is only because that is forced.
    camera = ask(made(policy("permit")), CAMERA, Right.PUBLISH)
    assert Publication(camera.require(), TYPE)(sighting(), environment(NOW)).values[LOCATION] == "Victoria"


def test_what_may_be_published_may_depend_on_what_else_is() -> None:
    """A plate may be shown of Victoria alone, and not together with a place where it is secret."""
    plates = made(
        policy(
            'deny target clause part == "numberplate" condition not (place == "Victoria")',
            'deny target clause part == "location" clause plate == "SECRET"',
            "permit",
        )
    )
    answers = [ask(plates, CCS, Right.PUBLISH)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Residuals, "restriction", unsaid)
        answers.append(ask(plates, CCS, Right.PUBLISH))
    for decision, (plate, place, told) in product(
        answers,
        [
            ("AE05 XYZ", "Victoria", {PLATE, LOCATION}),
            ("AE05 XYZ", "Dover", {LOCATION}),
            # Without the place nobody may show the plate, and without the plate the place may be shown.
            ("SECRET", "Victoria", {LOCATION}),
        ],
    ):
        published = Publication(decision.require(), TYPE)(sighting(plate, place), environment(NOW))
        assert published.values.keys() - {TIMESTAMP} == told, (plate, place)


def test_who_and_what_is_asked() -> None:
    for condition, who in (
        (f'who == "{MET.principal}"', MET),
        ('does == "subscribe"', MET),
        (f'about == "{TYPE.name}"', MET),
        (f'owner == "{PITO.principal}" and type_version == "8516"', MET),
        ('"location" in has and not ("speed" in has)', MET),
        (f'"{PITO.principal}/police" in any_role', MET),
        ('"subscribe" in may and not ("publish" in may)', MET),
        ('"publish" in may', CCS),
    ):
        bag = police(MET, PITO)
        assert shown(ask(made(policy(f"permit condition {condition}")), who, bag=bag)) == EVERYTHING, condition
        assert shown(ask(made(policy(f"permit condition not ({condition})")), who, bag=bag)) is None, condition
    # A right with conditions is not a right that a policy can use.
    assert shown(ask(made(policy('permit condition "subscribe" in may')), SMITH)) is None


def test_a_role_is_its_issuers_word() -> None:
    plates = made(policy('permit target clause role == "police"'))
    assert shown(ask(plates, MET, bag=police(MET, PITO))) == EVERYTHING
    assert shown(ask(plates, MET, bag=police(MET, MALLORY))) is None
    assert shown(ask(plates, MALLORY, bag=police(MALLORY, MALLORY))) is None


def test_only_publishing_and_subscribing_to_types_of_these_owners() -> None:
    nobody = made(policy("deny"))
    request = NetworkRequest(MET.principal, Right.CONNECT, NetworkName(MET.principal, "Met"), NOW)
    certified = CapabilityAuthority(Credentials())
    assert decide(request, [nobody.over(certified, certified)]).effect is Effect.PERMIT
    assert ask(nobody, CCS, Right.PUBLISH).effect is DENIED
    assert ask(nobody, PITO, Right.ROUTE).effect is Effect.PERMIT
    foreign = Policies.of(policy("deny"), owners=[MET.principal])
    assert shown(ask(foreign, MET)) == EVERYTHING
    assert shown(ask(Policies.of(policy("deny")), MET)) is None


def test_policies_that_would_give_rights_on_everybodys_types_are_refused() -> None:
    for combining in (ALONE, EITHER):
        with refused("policies.owners"):
            Policies.of(policy("permit"), combining=combining)
    with refused("policies.none"):
        Policies.of()
    with refused("xacml.combining"):
        Policies.of(policy("permit"), apply="urn:example:whim")


def test_several_policies_and_references() -> None:
    one, two = policy("permit", name="one"), policy('deny target clause place == "Dover"', name="two")
    decision = ask(made(one, two), MET)
    assert shown(decision) == EVERYTHING
    assert shown(decision, location="Dover") is None
    # What stands around them is nobody's policy.
    for combining in PolicyCombining:
        because = ask(made(one, two, combining=combining), MET).because
        assert {word for word in because if word.startswith("policy:")} <= {"policy:t.one", "policy:t.two"}
    algorithm = "urn:oasis:names:tc:xacml:1.0:policy-combining-algorithm:first-applicable"
    assert shown(ask(made(one, two, apply=algorithm), MET), location="Dover") is not None
    whole = PolicySet("all", "1.0", algorithm, (PolicyReference("t.two", to_set=False), one))
    assert shown(ask(made(whole, refer=[two]), MET), location="Dover") is None
    for roots, code in (([whole], "xacml.unknown"), ([one, one], "xacml.duplicate")):
        with refused(code):
            made(*roots)


# --- Types that extend others -----------------------------------------------------------------------------------------

FAST = TypeDefinition(
    TypeName(PITO.principal, "uk.gov.pito.Speeding"),
    (AttributeDefinition("speed", "1", AttributeSpec(Kind.INTEGER)),),
    V8516.event_type.name,
)


def below(definition: TypeDefinition) -> VerifiedType:
    signed = {one.name: sign_type(one, PITO) for one in (V4799.definition, V8516.definition)}
    return verify_type(sign_type(definition, PITO), NOW, types=signed.get)


SPEEDING = below(FAST)


def sped(plate: str = "AE05 XYZ") -> TransitEvent:
    ids = SPEEDING.event_type.by_name
    values: dict[str, Scalar] = {ids["numberplate"].id: plate, ids["location"].id: "Victoria", ids["speed"].id: 99}
    return TransitEvent(SPEEDING.event_type.key, SPEEDING.event_type.ancestors, values, "e2", NOW)


def test_a_policy_about_a_type_below_holds_for_who_subscribes_above() -> None:
    known = [V8516, SPEEDING]
    for rules, sees in (
        (['deny target clause type_name == "uk.gov.pito.Speeding"', "permit"], False),
        (["permit"], True),
        (['permit target clause type_name == "uk.gov.pito.Speeding"'], True),
    ):
        decision = ask(made(policy(*rules)), MET, known=known)
        seen = decision.effect is Effect.PERMIT and Delivery(decision.restriction, TYPE)(sped(), environment(NOW))
        assert bool(seen) is sees, rules
    # Of a type that nobody knows nothing is known.
    decision = ask(made(policy("permit")), MET, known=[V8516])
    assert Delivery(decision.restriction, TYPE)(sped(), environment(NOW)) is None
    # In some version it is denied: which version an event is of, nobody asks.
    newer = below(replace(FAST, name=replace(FAST.name, version="1")))
    old = policy('deny target clause type_version == "1"', "permit")
    decision = ask(made(old), MET, known=[V8516, SPEEDING, newer])
    assert Delivery(decision.restriction, TYPE)(sped(), environment(NOW)) is None


def test_types_of_named_owners_do_not_come_with_those_of_others() -> None:
    chase = TypeDefinition(TypeName(MET.principal, "uk.police.Chase"), (), V8516.event_type.name)
    types = {one.name: sign_type(one, PITO) for one in (V4799.definition, V8516.definition)}
    extend = event_tag(PITO.principal, V8516.event_type.name.name, None, [Right.MANAGE_ADD])
    verified = verify_type(
        sign_type(chase, MET, Credentials.of(grant(PITO, MET.principal, extend))), NOW, types=types.get
    )
    event = TransitEvent(verified.event_type.key, verified.event_type.ancestors, sped().values, "e3", NOW)
    for combining in (BOTH, RESTRICT, ALONE, EITHER):
        about = Policies.of(policy("deny"), combining=combining, owners=[MET.principal])
        decision = ask(about, MET, known=[V8516, SPEEDING, verified])
        assert shown(decision) == EVERYTHING
        deliver = Delivery(decision.restriction, TYPE)
        assert deliver(sped(), environment(NOW)) is not None
        assert deliver(event, environment(NOW)) is None, combining
        # As long as nobody here knows whose it is, too.
        unknown = ask(about, MET, known=[V8516, SPEEDING])
        assert Delivery(unknown.restriction, TYPE)(event, environment(NOW)) is None
    assert Delivery(ask(NO_POLICIES, MET).restriction, TYPE)(event, environment(NOW)) is not None


def test_a_policy_by_ancestors() -> None:
    above = policy(f'permit target clause above == "{TYPE.key}"')
    decision = ask(made(above, combining=ALONE), MET, type_=SPEEDING)
    assert decision.effect is Effect.PERMIT
    assert (
        ask(made(above, combining=ALONE), MET).effect is not Effect.PERMIT
        or shown(ask(made(above, combining=ALONE), MET)) is None
    )


# --- Agreed rules -----------------------------------------------------------------------------------------------------


def test_policies_stand_around_what_was_agreed_on() -> None:
    """Ann suits the rule and Bob does not; both have certificates."""
    agreements = Agreements((kit.agreed(kit.agreement(rule("r1", "A1", "role = 'engineer'"))),))
    a1 = kit.types()[event("A1")]
    certified = CapabilityAuthority(
        Credentials.of(*(kit.right(of, "A1", Right.SUBSCRIBE) for of in (kit.ANN, kit.BOB)))
    )
    for combining, rules, ann, bob in (
        (BOTH, ["permit"], True, False),
        (BOTH, ["deny"], False, False),
        (RESTRICT, ['deny target clause does == "publish"'], True, False),
        (EITHER, ["permit"], True, True),
        (ALONE, [f'permit target clause who == "{kit.BOB}"'], False, True),
    ):
        policies = Policies.of(policy(*rules), combining=combining, owners=[a1.event_type.name.owner])
        source = policies.over(agreements.over(certified), certified)
        for who, expected in ((kit.ANN, ann), (kit.BOB, bob)):
            decision = decide(EventRequest(who, Right.SUBSCRIBE, a1, AGREED), [source])
            assert (decision.effect is Effect.PERMIT) is expected, (combining, who)
            if expected and combining is BOTH:
                assert {"rule:r1", "policy:t.plates"} <= set(decision.because)
