"""Capabilities as a source of authority: the paper's own examples (section 5.2.2), and grants that must not count."""

from datetime import timedelta

import pytest
from tests.guard.london import (
    BAG,
    BILLING,
    CAMERA,
    CCS,
    LOCATION,
    MALLORY,
    MANAGER,
    MET,
    NEW,
    NOW,
    OLD,
    PITO,
    PLATE,
    SMITH,
    STATISTICS,
    SUSPECT,
    TIMESTAMP,
    TO_BILLING,
    TO_CAMERA,
    TO_CCS,
    TO_MET,
    TO_SMITH,
    TYPE,
    V4799,
    V8516,
    YEAR,
    ask,
    ask_network,
    grant,
    name,
    numberplate,
    sighting,
    transit,
    verified,
)

from penstock.codec.sexp import SExp
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.guard import CapabilityAuthority, Delivery, Effect, EventRequest, Publication, decide, environment
from penstock.model import AttributeId, AttributeSpec, Event, Kind
from penstock.trust.capabilities import BoundSelector, Right, attribute_to_sexp, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, Name, Threshold, issue
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.limits import TrustLimits
from penstock.trust.tags import ANY, Tag, parse_tag, to_sexp
from penstock.trust.validity import OnlineTest, Validity

HERE = environment(NOW)
OWNER = str(PITO.principal).encode()


def test_the_camera_reports_from_victoria_whatever_it_says() -> None:
    publish = Publication(ask(CAMERA, Right.PUBLISH).require(), TYPE)
    for said in ("Victoria", "Scotland Yard", None):
        sent = publish(sighting(location=said), HERE)
        assert dict(sent.values) == {PLATE: SUSPECT, TIMESTAMP: NOW, LOCATION: "Victoria"}


def test_billing_sees_plate_and_timestamp() -> None:
    seen = Delivery(ask(BILLING, Right.SUBSCRIBE).require(), TYPE)(transit(), HERE)
    assert seen is not None
    assert dict(seen.values) == {"numberplate": SUSPECT, "timestamp": NOW, "location": None}


def test_statistics_sees_location_and_timestamp() -> None:
    seen = Delivery(ask(STATISTICS, Right.SUBSCRIBE).require(), TYPE)(transit(), HERE)
    assert seen is not None
    assert dict(seen.values) == {"numberplate": None, "timestamp": NOW, "location": "Victoria"}


def test_the_detective_sees_all_of_one_car_and_nothing_of_others() -> None:
    deliver = Delivery(ask(SMITH, Right.SUBSCRIBE).require(), TYPE)
    seen = deliver(transit(), HERE)
    assert seen is not None
    assert dict(seen.values) == dict(sighting().values)
    assert deliver(transit("OTHER 1"), HERE) is None
    assert deliver(Event.of(TYPE, {"location": "Victoria"}).to_transit(), HERE) is None


def test_a_renamed_attribute_is_the_same_attribute() -> None:
    # Figure 4.3: published as `license-plate`, read as `numberplate`; the grants name the UID.
    old = Event.of(V4799.event_type, {"license-plate": SUSPECT, "timestamp": NOW, "location": "x"})
    sent = Publication(ask(CAMERA, Right.PUBLISH, type_=V4799).require(), V4799.event_type)(old, HERE)
    seen = Delivery(ask(BILLING, Right.SUBSCRIBE).require(), TYPE)(sent, HERE)
    assert seen is not None
    assert dict(seen.values) == {"numberplate": SUSPECT, "timestamp": NOW, "location": None}


def test_an_attribute_that_takes_an_old_name_is_another_attribute() -> None:
    later = verified(NEW.add("license-plate", "3879", AttributeSpec(Kind.STRING), version="9000"))
    fresh = AttributeId(PITO.principal, OLD.name.name, "3879")
    event = Event.of(later.event_type, {"numberplate": SUSPECT, "license-plate": "on the wall"}).to_transit()
    assert event.values[fresh] == "on the wall"
    seen = Delivery(ask(BILLING, Right.SUBSCRIBE, type_=V4799).require(), V4799.event_type)(event, HERE)
    assert seen is not None
    assert seen["license-plate"] == SUSPECT
    # What was added after the grant was written is not granted.
    seen = Delivery(ask(BILLING, Right.SUBSCRIBE, type_=later).require(), later.event_type)(event, HERE)
    assert seen is not None
    assert (seen["numberplate"], seen["license-plate"]) == (SUSPECT, None)


def test_a_capability_applies_to_versions_that_lack_its_attributes() -> None:
    # Section 5.2.2: "the attributes do not have to exist in the event type".
    bare = verified(NEW.remove("location", version="9001"))
    event = Event.of(bare.event_type, {"numberplate": SUSPECT, "timestamp": NOW})
    sent = Publication(ask(CAMERA, Right.PUBLISH, type_=bare).require(), bare.event_type)(event, HERE)
    assert dict(sent.values) == {PLATE: SUSPECT, TIMESTAMP: NOW}


@pytest.mark.parametrize(
    ("who", "right", "chain"),
    [
        (BILLING, Right.SUBSCRIBE, (TO_CCS, TO_BILLING)),
        (CAMERA, Right.PUBLISH, (TO_CCS, TO_CAMERA)),
        (SMITH, Right.SUBSCRIBE, (TO_MET, TO_SMITH)),
        (CCS, Right.PUBLISH, (TO_CCS,)),
        (PITO, Right.PUBLISH, ()),
    ],
)
def test_because_names_every_credential_of_the_chain(
    who: SigningKey, right: Right, chain: tuple[Certificate, ...]
) -> None:
    decision = ask(who, right)
    assert decision.effect is Effect.PERMIT
    assert decision.because == tuple(link.id for link in chain)


def test_because_names_the_name_certificates_of_a_group_too() -> None:
    to_group = grant(MET, Name(MET.principal, (b"Detectives",)), numberplate(Right.SUBSCRIBE))
    member = name(MET, b"Detectives", Name(MET.principal, (b"Homicide",)))
    nested = name(MET, b"Homicide", SMITH.principal)
    bag = Credentials.of(nested, member, to_group, TO_MET)
    decision = ask(SMITH, Right.SUBSCRIBE, bag)
    assert decision.effect is Effect.PERMIT
    assert set(decision.because) == {TO_MET.id, to_group.id, member.id, nested.id}
    for missing in bag:
        rest = Credentials.of(*(c for c in bag if c is not missing))
        assert ask(SMITH, Right.SUBSCRIBE, rest).effect is Effect.DENY
    assert ask(MALLORY, Right.SUBSCRIBE, bag).effect is Effect.DENY


def test_membership_that_ends_ends_the_right() -> None:
    soon = Validity.between(None, NOW + timedelta(hours=1))
    bag = Credentials.of(
        TO_MET,
        grant(MET, Name(MET.principal, (b"Detectives",)), numberplate(Right.SUBSCRIBE)),
        name(MET, b"Detectives", SMITH.principal, soon),
    )
    deliver = Delivery(ask(SMITH, Right.SUBSCRIBE, bag).require(), TYPE)
    assert deliver(transit(), environment(NOW + timedelta(hours=1))) is not None
    assert deliver(transit(), environment(NOW + timedelta(hours=2))) is None


def test_a_quorum_grants_only_together() -> None:
    quorum = Threshold(2, (CCS.principal, MET.principal))
    upper = grant(PITO, quorum, numberplate(Right.SUBSCRIBE), passes=True)
    one, two = (grant(key, SMITH.principal, numberplate(Right.SUBSCRIBE)) for key in (CCS, MET))
    assert ask(SMITH, Right.SUBSCRIBE, Credentials.of(upper, one)).effect is Effect.DENY
    decision = ask(SMITH, Right.SUBSCRIBE, Credentials.of(upper, one, two))
    assert decision.effect is Effect.PERMIT
    assert set(decision.because) == {upper.id, one.id, two.id}


@pytest.mark.parametrize("tag", [ANY, event_tag(PITO.principal), event_tag(PITO.principal, "uk.gov.pito.*")])
def test_a_blanket_capability_covers_all_types_and_rights(tag: Tag) -> None:
    bag = Credentials.of(grant(PITO, MANAGER.principal, tag))
    for right in (Right.PUBLISH, Right.SUBSCRIBE, Right.MANAGE, Right.MANAGE_ADD):
        decision = ask(MANAGER, right, bag)
        assert decision.effect is Effect.PERMIT
        assert [branch.attributes for branch in decision.restriction.branches] == [None]
    assert ask(MALLORY, Right.SUBSCRIBE, bag).effect is Effect.DENY


def test_a_part_of_a_right_is_not_the_right() -> None:
    bag = Credentials.of(grant(PITO, MANAGER.principal, numberplate(Right.MANAGE_RENAME)))
    assert ask(MANAGER, Right.MANAGE_RENAME, bag).effect is Effect.PERMIT
    assert ask(MANAGER, Right.MANAGE, bag).effect is Effect.DENY
    assert ask(MANAGER, Right.MANAGE_ADD, bag).effect is Effect.DENY


def test_the_right_to_one_version_is_no_right_to_another() -> None:
    bag = Credentials.of(grant(PITO, SMITH.principal, event_tag(PITO.principal, OLD.name.name, "4799")))
    assert ask(SMITH, Right.SUBSCRIBE, bag, V4799).effect is Effect.PERMIT
    assert ask(SMITH, Right.SUBSCRIBE, bag, V8516).effect is Effect.DENY


def test_networks_are_joined_and_installed_on_by_capability() -> None:
    to_met = grant(PITO, MET.principal, network_tag(PITO.principal, None, [Right.CONNECT]), passes=True)
    to_smith = grant(MET, SMITH.principal, network_tag(PITO.principal, "UK Police Network"))
    bag = Credentials.of(to_met, to_smith)
    decision = ask_network(SMITH, Right.CONNECT, bag)
    assert (decision.effect, decision.because) == (Effect.PERMIT, (to_met.id, to_smith.id))
    # The detective's own certificate says more than the Met could give.
    assert ask_network(SMITH, Right.INSTALL, bag).effect is Effect.DENY
    assert ask_network(MALLORY, Right.CONNECT, bag).effect is Effect.DENY
    assert ask_network(PITO, Right.INSTALL, Credentials()).effect is Effect.PERMIT
    other = grant(PITO, SMITH.principal, network_tag(PITO.principal, "Another Network"))
    assert ask_network(SMITH, Right.CONNECT, Credentials.of(other)).effect is Effect.DENY
    # A right on types is none on networks, and the other way round.
    assert ask_network(CCS, Right.CONNECT, BAG).effect is Effect.DENY
    assert ask(MET, Right.SUBSCRIBE, Credentials.of(to_met)).effect is Effect.DENY


def test_a_right_on_a_network_with_more_than_is_understood_is_none() -> None:
    strange = parse_tag((b"network", OWNER, b"UK Police Network", b"connect", b"on-tuesdays"))
    assert (
        ask_network(SMITH, Right.CONNECT, Credentials.of(grant(PITO, SMITH.principal, strange))).effect is Effect.DENY
    )


STAR: SExp = (b"*",)
MALFORMED: dict[str, tuple[SExp, ...]] = {
    "an unknown place": (STAR, STAR, STAR, b"more"),
    "a where that is not a predicate": (STAR, b"yes"),
    "a set of wheres": (
        STAR,
        (b"*", b"set", (b"*", b"where", (b"sql", b"TRUE")), (b"*", b"where", (b"sql", b"FALSE"))),
    ),
    "a selector that does not parse": (STAR, (b"*", b"where", (b"sql", b"DROP TABLE x"))),
    "a selector over nothing bound": (STAR, (b"*", b"where", (b"sql", b"numberplate = 'X'"))),
    "a selector of the wrong kind": (
        STAR,
        (b"*", b"where", (b"sql", b"a > 3", (b"a", attribute_to_sexp(PLATE)))),
    ),
    "a forced value that is none": (STAR, (b"*", b"where", (b"is", attribute_to_sexp(PLATE), (b"float", b"nan")))),
    "a forced value of another kind": (STAR, (b"*", b"where", (b"is", attribute_to_sexp(PLATE), (b"integer", b"1")))),
    "a forced attribute that is none": (STAR, (b"*", b"where", (b"is", (b"attr", b"x"), (b"integer", b"1")))),
    "a condition with bindings": (STAR, STAR, (b"*", b"where", (b"sql", b"hour < 9", (b"x", (b"attr", b"y"))))),
    "a condition about the unknown": (STAR, STAR, (b"*", b"where", (b"sql", b"on_duty"))),
    "a condition of the wrong kind": (STAR, STAR, (b"*", b"where", (b"sql", b"hour = 'nine'"))),
    "a forced condition": (STAR, STAR, (b"*", b"where", (b"is", attribute_to_sexp(PLATE), (b"string", b"X")))),
}


@pytest.mark.parametrize("places", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_grant_grants_nothing_and_harms_no_other(places: tuple[SExp, ...]) -> None:
    tag = parse_tag((b"event-type", OWNER, OLD.name.name.encode(), STAR, b"subscribe", *places))
    broken = grant(PITO, BILLING.principal, tag)
    decision = ask(BILLING, Right.SUBSCRIBE, Credentials.of(broken))
    assert decision.effect is Effect.INDETERMINATE
    assert [problem.source for problem in decision.errors] == [broken.id]
    with pytest.raises(RefusedError):
        decision.require()
    beside = ask(BILLING, Right.SUBSCRIBE, BAG + Credentials.of(broken))
    assert beside.effect is Effect.PERMIT
    assert beside.restriction == ask(BILLING, Right.SUBSCRIBE).restriction
    assert broken.id not in beside.because


def test_a_grant_too_large_to_enforce_harms_no_other() -> None:
    # Each selector can be read; all of them together are longer than a selector may be.
    selectors = [BoundSelector.of(f"location <> '{i:04}{'x' * 4000}'", TYPE) for i in range(5)]
    large = grant(PITO, BILLING.principal, event_tag(PITO.principal, where=selectors))
    decision = ask(BILLING, Right.SUBSCRIBE, BAG + Credentials.of(large))
    assert decision.effect is Effect.PERMIT
    assert [problem.code for problem in decision.errors] == ["selector.limit"]
    assert large.id not in decision.because


def test_what_may_not_be_set_may_not_be_forced_either() -> None:
    # CCS may publish plates only. It must not write locations by forcing them on a client of its own.
    upper = grant(PITO, CCS.principal, numberplate(Right.PUBLISH, attributes=[PLATE]), passes=True)
    lower = grant(CCS, CAMERA.principal, numberplate(Right.PUBLISH, forced={LOCATION: "Heathrow"}))
    decision = ask(CAMERA, Right.PUBLISH, Credentials.of(upper, lower))
    assert decision.effect is Effect.INDETERMINATE
    assert [problem.code for problem in decision.errors] == ["guard.forced-unlisted"]
    # On subscribe the same chain only filters.
    upper = grant(PITO, CCS.principal, numberplate(Right.SUBSCRIBE, attributes=[PLATE]), passes=True)
    lower = grant(CCS, CAMERA.principal, numberplate(Right.SUBSCRIBE, forced={LOCATION: "Heathrow"}))
    deliver = Delivery(ask(CAMERA, Right.SUBSCRIBE, Credentials.of(upper, lower)).require(), TYPE)
    seen = deliver(transit(location="Heathrow"), HERE)
    assert seen is not None
    assert dict(seen.values) == {"numberplate": SUSPECT, "timestamp": None, "location": None}
    assert deliver(transit(location="Victoria"), HERE) is None


def test_two_forced_values_leave_nothing() -> None:
    upper = grant(PITO, MET.principal, numberplate(Right.SUBSCRIBE, forced={PLATE: "A"}), passes=True)
    lower = grant(MET, SMITH.principal, numberplate(Right.SUBSCRIBE, forced={PLATE: "B"}))
    assert ask(SMITH, Right.SUBSCRIBE, Credentials.of(upper, lower)).effect is Effect.DENY


def test_delegation_narrows_and_never_widens() -> None:
    lower = grant(BILLING, MALLORY.principal, numberplate(Right.SUBSCRIBE))
    assert ask(MALLORY, Right.SUBSCRIBE, BAG + Credentials.of(lower)).effect is Effect.DENY
    wider = grant(MET, SMITH.principal, event_tag(PITO.principal))
    bag = Credentials.of(
        grant(PITO, MET.principal, numberplate(Right.SUBSCRIBE, attributes=[PLATE]), passes=True), wider
    )
    assert ask(SMITH, Right.PUBLISH, bag).effect is Effect.DENY
    assert [b.attributes for b in ask(SMITH, Right.SUBSCRIBE, bag).restriction.branches] == [frozenset({PLATE})]


def test_dates_are_asked_at_the_decision_and_at_each_event() -> None:
    day = Validity.between(NOW, NOW + timedelta(days=1))
    bag = Credentials.of(grant(PITO, SMITH.principal, numberplate(Right.SUBSCRIBE), valid=day))
    assert ask(SMITH, Right.SUBSCRIBE, bag, now=NOW - timedelta(seconds=1)).effect is Effect.DENY
    assert ask(SMITH, Right.SUBSCRIBE, bag, now=NOW + timedelta(days=1, seconds=1)).effect is Effect.DENY
    deliver = Delivery(ask(SMITH, Right.SUBSCRIBE, bag).require(), TYPE)
    assert deliver(transit(), environment(NOW + timedelta(days=1))) is not None
    assert deliver(transit(), environment(NOW + timedelta(days=1, microseconds=1))) is None


def test_an_online_test_that_nobody_answers_is_not_passed() -> None:
    asked = Validity(online=(OnlineTest("reval", (b"online", b"reval")),))
    bag = Credentials.of(grant(PITO, SMITH.principal, numberplate(Right.SUBSCRIBE), valid=asked))
    assert ask(SMITH, Right.SUBSCRIBE, bag).effect is Effect.DENY
    request = EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
    hour = Validity.between(NOW, NOW + timedelta(hours=1))
    decision = decide(request, [CapabilityAuthority(bag, online=lambda _test, _id, _now: hour)])
    deliver = Delivery(decision.require(), TYPE)
    assert deliver(transit(), HERE) is not None
    assert deliver(transit(), environment(NOW + timedelta(hours=2))) is None


def test_working_hours_and_the_rate_of_publication_are_conditions() -> None:
    # Section 6.4: a certificate for a month that holds from nine to five, and not for a flood.
    office = "hour BETWEEN 9 AND 16 AND weekday <= 5"
    bag = Credentials.of(grant(PITO, CAMERA.principal, numberplate(Right.PUBLISH, when=(office, "rate < 10"))))
    publish = Publication(ask(CAMERA, Right.PUBLISH, bag).require(), TYPE)
    midnight = NOW.replace(hour=0)
    for hour in range(24):
        moment = midnight + timedelta(hours=hour, minutes=59, seconds=59)
        if 9 <= hour < 17:
            assert publish(sighting(), environment(moment, rate=9)).values
        else:
            with pytest.raises(RefusedError) as caught:
                publish(sighting(), environment(moment, rate=0))
            assert caught.value.code == "guard.not-permitted"
    for refused in (environment(NOW, rate=10), environment(NOW), environment(NOW + timedelta(days=1), rate=0)):
        with pytest.raises(RefusedError):
            publish(sighting(), refused)


def test_grants_beyond_the_bound_are_left_out_and_said() -> None:
    bag = Credentials.of(
        *(grant(PITO, SMITH.principal, numberplate(Right.SUBSCRIBE, forced={PLATE: f"P {i}"})) for i in range(5))
    )
    few = CapabilityAuthority(bag, limits=TrustLimits(grants_per_principal=3))
    decision = decide(EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW), [few])
    assert len(decision.restriction.branches) == 3
    assert [problem.code for problem in decision.errors] == ["guard.truncated"]


def test_the_explanation_names_the_link_that_is_missing() -> None:
    authority = CapabilityAuthority(BAG)
    allowed = authority.explain(EventRequest(BILLING.principal, Right.SUBSCRIBE, V8516, NOW))
    assert allowed.allowed
    assert [link.certificate.id for link in allowed.links] == [TO_CCS.id, TO_BILLING.id]
    refused = authority.explain(EventRequest(BILLING.principal, Right.PUBLISH, V8516, NOW))
    assert not refused.allowed
    assert [link.code for link in refused.links if link.code] == ["chain.no-authority"]


def test_credentials_that_travelled_decide_the_same() -> None:
    again = read_credentials(BAG.to_bytes()).verify()
    assert ask(CAMERA, Right.PUBLISH, again) == ask(CAMERA, Right.PUBLISH)


def test_someone_elses_word_about_pitos_types_is_worth_nothing() -> None:
    own = issue(Authorisation(MALLORY.principal, MALLORY.principal, event_tag(PITO.principal), True, YEAR), MALLORY)
    assert ask(MALLORY, Right.PUBLISH, BAG + Credentials.of(own)).effect is Effect.DENY


def test_one_certificate_may_grant_several_rights_each_with_its_own_terms() -> None:
    plates = event_tag(
        PITO.principal, TYPE.name.name, None, [Right.SUBSCRIBE], attributes=[PLATE], forced={PLATE: SUSPECT}
    )
    places = event_tag(PITO.principal, TYPE.name.name, None, [Right.SUBSCRIBE], attributes=[LOCATION])
    both = parse_tag((b"*", b"set", to_sexp(plates), to_sexp(places)))
    bag = Credentials.of(TO_CCS, grant(CCS, MALLORY.principal, both))
    deliver = Delivery(ask(MALLORY, Right.SUBSCRIBE, bag).require(), TYPE)
    suspect, other = deliver(transit(), HERE), deliver(transit("CD06 ABC"), HERE)
    assert suspect is not None
    assert other is not None
    assert (suspect["numberplate"], suspect["location"]) == (SUSPECT, "Victoria")
    assert (other["numberplate"], other["location"]) == (None, "Victoria")


def test_a_decision_about_all_times_says_when_each_branch_holds() -> None:
    reading = event_tag(PITO.principal, TYPE.name.name, None, [Right.SUBSCRIBE])
    march = grant(
        CCS, BILLING.principal, reading, valid=Validity.between(NOW - timedelta(days=9), NOW - timedelta(days=8))
    )
    later = grant(CCS, BILLING.principal, reading, valid=Validity.between(NOW, NOW + timedelta(days=1)))
    bag = Credentials.of(TO_CCS, march, later)
    decision = decide(EventRequest(BILLING.principal, Right.SUBSCRIBE, V8516, None), [CapabilityAuthority(bag)])
    deliver = Delivery(decision.require(), TYPE)
    for moment, shown in [(-8.5, True), (-3.0, False), (0.5, True), (2.0, False)]:
        assert (deliver(transit(), environment(NOW + timedelta(days=moment))) is not None) is shown
