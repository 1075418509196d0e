"""Who may hold the key of a group, and for how long."""

from dataclasses import replace

import pytest
from tests.broker.key_kit import GROUP, LANES, PLATES, VERIFIED, grounds, right
from tests.trust.kit import CURRENT, DAY, FUTURE, NOW, PAST, grant, refused, who
from tests.trust.types_kit import PITO, PLATE

from penstock.broker.keys.rights import READERS, KeyEntitlement, entitlement
from penstock.guard.decision import Decision, Effect, EventRequest
from penstock.guard.restriction import Branch, Restriction, When
from penstock.model.names import TypeKey, TypeName
from penstock.trust.capabilities import BoundSelector, Right, event_tag
from penstock.trust.certificates import Certificate
from penstock.trust.key_statements import KeyGroup
from penstock.trust.tags import Tag
from penstock.trust.validity import ALWAYS, OnlineTest, Validity

BROKER = 20
SERVED = [PLATE.name]
LANE = VERIFIED.event_type.by_name["lane"].id


def entitled(*certificates: Certificate, group: KeyGroup = GROUP) -> KeyEntitlement:
    return entitlement(grounds(BROKER, *certificates), who(BROKER), group, SERVED, NOW)


def tagged(tag: Tag) -> Certificate:
    return grant(PITO, BROKER, tag)


def test_a_right_counts_for_as_long_as_it_is_valid() -> None:
    assert entitled(right(BROKER)) == KeyEntitlement(CURRENT.starts, CURRENT.ends)
    assert entitled(right(BROKER, Right.PUBLISH, validity=ALWAYS)) == KeyEntitlement()


def test_several_rights_that_hold_now_count_together() -> None:
    early, late = Validity.between(NOW - 9 * DAY, NOW + DAY), Validity.between(NOW - DAY, NOW + 9 * DAY)
    both = entitled(right(BROKER, validity=early), right(BROKER, Right.PUBLISH, validity=late))
    assert both == KeyEntitlement(early.starts, late.ends)


@pytest.mark.parametrize(
    "certificate",
    [
        right(BROKER, validity=PAST),
        right(BROKER, validity=FUTURE),
        right(BROKER, Right.ROUTE),
        right(BROKER, Right.HISTORY),
        right(BROKER, attributes=[LANE]),
        right(BROKER + 1),
        tagged(event_tag(who(PITO), None, None, [Right.SUBSCRIBE], forced={LANE: 3})),
        tagged(event_tag(who(PITO), None, None, [Right.SUBSCRIBE], when=["hour > 3"])),
        tagged(
            event_tag(
                who(PITO), None, None, [Right.SUBSCRIBE], where=[BoundSelector.of("lane > 3", VERIFIED.event_type)]
            )
        ),
    ],
    ids=["over", "to come", "route", "history", "attribute", "another", "forced", "condition", "where"],
)
def test_what_is_no_right_to_the_whole_key_does_not_count(certificate: Certificate) -> None:
    with refused("keys.not-entitled"):
        entitled(certificate, group=PLATES)


def test_a_right_on_an_attribute_gives_its_key_and_that_of_the_type() -> None:
    lanes = right(BROKER, attributes=[LANE])
    for group in (GROUP, LANES):
        assert entitled(lanes, group=group).until == CURRENT.ends


def test_answers_to_other_questions_do_not_count() -> None:
    shown = grounds(BROKER, right(BROKER))
    other = KeyGroup(TypeKey(who(PITO), "uk.gov.pito.Camera"))
    for broker, group, served in (
        (who(BROKER + 1), GROUP, SERVED),
        (who(BROKER), other, SERVED),
        (who(BROKER), GROUP, []),
        (who(BROKER), GROUP, [*SERVED, TypeName(who(PITO), PLATE.name.name, "1")]),
    ):
        with refused("keys.not-entitled"):
            entitlement(shown, broker, group, served, NOW)
    with refused("keys.not-entitled"):
        entitlement([], who(BROKER), GROUP, SERVED, NOW)


def test_the_answer_of_yesterday_does_not_hold_for_ever() -> None:
    shown = grounds(BROKER, right(BROKER, validity=Validity.between(NOW - DAY, NOW + DAY)))
    with refused("keys.not-entitled"):
        entitlement(shown, who(BROKER), GROUP, SERVED, NOW + 2 * DAY)


def test_reading_history_is_a_right_of_its_own() -> None:
    for rights, fine in (((Right.HISTORY,), True), ((Right.SUBSCRIBE, Right.PUBLISH), False)):
        shown = grounds(BROKER, right(BROKER, *rights))
        if fine:
            assert entitlement(shown, who(BROKER), GROUP, SERVED, NOW, rights=READERS).until == CURRENT.ends
        else:
            with refused("keys.not-entitled"):
                entitlement(shown, who(BROKER), GROUP, SERVED, NOW, rights=READERS)


def test_a_right_that_must_be_asked_about_online_does_not_count() -> None:
    test = OnlineTest("crl", (b"online", b"crl"))
    for online, fine in (((), True), ((test,), False)):
        branch = Branch(action=Right.SUBSCRIBE, when=When(replace(CURRENT, online=online)))
        decision = Decision(Effect.PERMIT, Restriction((branch,)))
        shown = [(EventRequest(who(BROKER), Right.SUBSCRIBE, VERIFIED, NOW), decision)]
        if fine:
            assert entitlement(shown, who(BROKER), GROUP, SERVED, NOW) == KeyEntitlement(CURRENT.starts, CURRENT.ends)
        else:
            with refused("keys.not-entitled"):
                entitlement(shown, who(BROKER), GROUP, SERVED, NOW)


def test_an_entitlement_says_since_when() -> None:
    since = NOW - DAY
    assert KeyEntitlement(since).covers(since)
    assert not KeyEntitlement(since).covers(since - DAY)
    assert KeyEntitlement().covers(since)
