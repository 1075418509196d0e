"""Rules as values: what they are signed as, and which there are not."""

from dataclasses import replace

import pytest
from tests.moderator.kit import P1, P2, event, rule
from tests.trust.kit import CURRENT, key, refused, who

from penstock.codec.sexp import SExp, advanced, canonical, parse
from penstock.codec.sexp import head as sexp_head
from penstock.crypto import digest
from penstock.moderator.limits import MODERATOR_ID_LENGTH
from penstock.moderator.rules.rules import PublishRule, Rule, SubscribeRule
from penstock.selector import parse as parse_selector
from penstock.trust.signed import read_signed, sign_value

PUBLISH = replace(rule("r1", "A1", "role = 'engineer'", "company <> 'B'", of=(P1, P2)), validity=CURRENT)
SUBSCRIBE = SubscribeRule("s1", event("A1"), who(21), who(21), parse_selector("company = 'A'"))


@pytest.mark.parametrize(("stated", "number"), [(PUBLISH, 11), (SUBSCRIBE, 21), (rule("r2", "A2"), 11)])
def test_rules_are_signed_by_who_stated_them(stated: Rule, number: int) -> None:
    signed = sign_value(stated, key(number))
    assert read_signed(parse(signed.to_bytes()), PublishRule, SubscribeRule).verify().value == stated
    with refused("evolution.wrong-key"):
        sign_value(stated, key(99))


def test_the_written_form() -> None:
    owner, subscriber = str(event("A1").owner), str(who(21))
    assert " ".join(advanced(SUBSCRIBE.to_sexp()).split()) == (
        f"(subscribe-rule (id s1) (event {owner} A1) (subscriber {subscriber})"
        f""" (fnc-p "company = 'A'") (stated-by {subscriber}))"""
    )


@pytest.mark.parametrize("lost", [b"id", b"event", b"publishers", b"fnc-p", b"fnc-s", b"stated-by"])
def test_a_rule_without_a_field_is_none(lost: bytes) -> None:
    body = PUBLISH.to_sexp()
    assert isinstance(body, tuple)
    rest: SExp = tuple(part for part in body if not (isinstance(part, tuple) and part[0] == lost))
    with refused("evolution.malformed"):
        PublishRule.from_sexp(rest)


def test_a_function_has_one_written_form() -> None:
    body = PUBLISH.to_sexp()
    assert isinstance(body, tuple)
    other: SExp = tuple((b"fnc-s", b"role='engineer'") if sexp_head(part) == b"fnc-s" else part for part in body)
    assert PublishRule.from_sexp(other) == PUBLISH
    signature = (
        b"signature",
        (b"hash", b"sha256", digest(other)),
        key(11).public.to_sexp(),
        key(11).sign(canonical(other)),
    )
    with refused("evolution.malformed"):
        read_signed((b"sequence", other, signature), PublishRule)


@pytest.mark.parametrize("name", ["", "-a", "a b", "ä", "a\n"])
def test_ids_are_plain_words(name: str) -> None:
    with refused("moderator.rule"):
        rule(name, "A1")


def test_bounds_and_publishers() -> None:
    with refused("moderator.limit"):
        rule("a" * (MODERATOR_ID_LENGTH + 1), "A1")
    for publishers in ((), (P1, P1)):
        with refused("moderator.rule"):
            PublishRule("r", event("A1"), publishers, P1)
    with refused("moderator.limit"):
        PublishRule("r", event("A1"), tuple(map(who, range(1_000, 2_025))), P1)
