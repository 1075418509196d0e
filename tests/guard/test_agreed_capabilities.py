"""Certificates say what was agreed on, never more, and tell what they cannot say."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.guard.agreed_kit import ANN, BOB, OWNING, P1, PROFILES, TREE, agreed, agreement, types
from tests.guard.test_agreements_properties import HERE, PUBLISHERS, SUBSCRIBERS, people, publish_rules, published
from tests.moderator.kit import OWNER, event, rule
from tests.trust.kit import CURRENT, NOW, key

from penstock.guard import CapabilityAuthority, Delivery, EventRequest, Publication, Restriction, decide
from penstock.guard.agreed_capabilities import Renewal, Short, capabilities, renewal
from penstock.guard.agreements import AgreedRules
from penstock.model import Event, Principal
from penstock.model.tree import TreeScope
from penstock.moderator.rules.rules import Rule
from penstock.trust.capabilities import Right, describe_tag
from penstock.trust.certificates import Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, sign_value
from penstock.trust.validity import ALWAYS

TYPES = [verified.event_type for verified in types().values()]


def issued(rules: AgreedRules, told: bool = True) -> list[Certificate]:
    made = capabilities(rules, [verified.event_type for verified in types(told=told).values()])
    return [issue(statement, OWNING) for statement in made.statements]


def may(certificates: list[Certificate], of: Principal, action: Right, verified: VerifiedType) -> Restriction:
    authority = CapabilityAuthority(Credentials.of(*certificates))
    return decide(EventRequest(of, action, verified, NOW), [authority]).restriction


@settings(max_examples=examples(20), deadline=None)
@given(publish_rules(), people(), st.sampled_from(TreeScope))
def test_certificates_allow_what_rules_allow(
    stated: list[Rule], claims: list[SignedValue[ProfileClaim]], scope: TreeScope
) -> None:
    rules = agreed(agreement(*stated, scope=scope), claims)
    made = issued(rules)
    short = set(capabilities(rules, TYPES).short)
    tree, known = rules.agreement.vocabulary.tree, set(rules.known)
    assert scope is TreeScope.UPWARD or not short
    for publisher in PUBLISHERS:
        for about, verified in types().items():
            found = published(
                publisher, about, Publication(may(made, publisher, Right.PUBLISH, verified), verified.event_type)
            )
            assert (found is not None) is (publisher in known and rules.may_publish(about, publisher))
            for reader in SUBSCRIBERS if found is not None else ():
                allowed = reader in known and rules.may_receive(about, publisher, reader)
                for above in (about, *tree.ancestors(about)):
                    view = Delivery(may(made, reader, Right.SUBSCRIBE, types()[above]), types()[above].event_type)
                    seen = found is not None and view(found, HERE) is not None
                    assert allowed or not seen
                    if above == about:
                        assert seen is (allowed and Short(about, publisher, reader) not in short)


@settings(max_examples=examples(15), deadline=None)
@given(publish_rules(), people(), st.sampled_from(TreeScope))
def test_never_more_where_events_do_not_say_from_whom_they_are(
    stated: list[Rule], claims: list[SignedValue[ProfileClaim]], scope: TreeScope
) -> None:
    rules = agreed(agreement(*stated, scope=scope), claims)
    made = issued(rules, told=False)
    for reader in set(SUBSCRIBERS) & set(rules.known):
        for about in TREE:
            event_ = Event.of(types(told=False)[about].event_type, {"noteX": "n"}).to_transit()
            wanted = all(rules.may_receive(about, one.publisher, reader) for one in rules.entitled(about))
            for above in (about, *rules.agreement.vocabulary.tree.ancestors(about)):
                verified = types(told=False)[above]
                view = Delivery(may(made, reader, Right.SUBSCRIBE, verified), verified.event_type)
                assert wanted or view(event_, HERE) is None


def test_what_they_say() -> None:
    claims = [PROFILES[0], sign_value(ProfileClaim(ANN, OWNER, None, {"role": "engineer"}, CURRENT), key(1))]
    made = capabilities(agreed(agreement(rule("r", "A10", "role = 'engineer'")), claims), TYPES)
    said = {one.subject: describe_tag(one.tag) for one in made.statements}
    uid = TYPES[0].by_name["publisher"].id.uid
    assert said[P1]["rights"] == "publish"
    assert said[P1]["where"] == [f"X#{uid} = '{P1}'"]
    assert said[ANN]["rights"] == "subscribe"
    assert said[ANN]["where"] == [f"publisher IN ('{P1}')"]
    assert {one.validity for one in made.statements} == {ALWAYS, CURRENT}
    assert {(one.issuer, one.propagate, one.comment) for one in made.statements} == {(OWNER, False, "agreement plant")}


def test_what_they_cannot_say_is_told() -> None:
    rules = agreed(
        agreement(rule("x", "X"), rule("a", "A1", "role = 'worker'"), scope=TreeScope.UPWARD),
        PROFILES[:1] + PROFILES[2:],
    )
    made = capabilities(rules, TYPES)
    # Ann would get events of A1 with a right on X; Bob may have them.
    short = {one.subscriber: one for one in made.short}
    assert short[ANN] == Short(event("X"), P1, ANN)
    assert BOB not in short


def test_what_a_change_takes() -> None:
    before = agreed(agreement(rule("r", "A1", "role = 'engineer'"), rule("s", "A2")))
    after = agreed(agreement(rule("r", "A1", "role = 'worker'"), rule("s", "A2")))
    old, wanted = issued(before), capabilities(after, TYPES).statements
    found = renewal(wanted, old)
    assert {statement.subject for statement in found.issue} == {BOB}
    assert {certificate.statement.subject for certificate in found.revoke} == {ANN}
    assert {*found.keep, *found.revoke} == set(old)
    done = [*found.keep, *(issue(statement, OWNING) for statement in found.issue)]
    assert renewal(wanted, done) == Renewal(keep=tuple(done))
    # What stands there twice is issued once.
    assert len(renewal((*wanted, *wanted), []).issue) == len(set(wanted))
    assert len(renewal(wanted, [*done, done[0]]).revoke) == 1
