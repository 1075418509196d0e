"""Bundles of signed rules: nothing is believed that was not verified, and any bytes are read or refused."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.files.test_rule_file import BASE
from tests.spoiled import flipped
from tests.trust.kit import key, who

from penstock.codec.sexp import canonical, parse_canonical
from penstock.codec.yaml_text import read_yaml
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.moderator.files.rule_bundle import HEAD, RuleBundle, join, read_bundle, sign_bundle, to_founding
from penstock.moderator.files.rule_file import RuleFile, read_rule_file

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
KNOWN = {"acme": who(8), "Ada": who(9)}


def rules() -> RuleFile:
    return read_rule_file(read_yaml(BASE), KNOWN)


def bundle(*numbers: int, found: bool = True) -> RuleBundle:
    founding = to_founding(rules(), "moderator", who(7), NOW) if found else None
    return sign_bundle(rules(), [key(number) for number in numbers], founding)


WHOLE = bundle(7, 8, 9)
OCTETS = canonical(WHOLE.to_sexp())


def test_what_was_signed_is_the_rule_base() -> None:
    read = read_bundle(parse_canonical(OCTETS))
    assert read == WHOLE
    verified, stated = read.verify(), rules()
    assert verified == replace(
        stated,
        title="",
        owner=verified.owner,
        names={},
        customs=replace(stated.customs, subscribers=verified.customs.subscribers),
    )


def test_each_signs_its_own_and_they_are_put_together() -> None:
    parts = [bundle(7), bundle(8, found=False), bundle(9, found=False), bundle(8, found=False)]
    assert [len(part.rules) for part in parts] == [1, 5, 1, 5]
    assert {rule.value.id for rule in join(parts).rules} == {rule.value.id for rule in WHOLE.rules}
    assert join(parts).verify().vocabulary == rules().vocabulary
    with pytest.raises(MalformedError) as raised:
        join(parts[1:]).verify()
    assert raised.value.code == "moderator.bundle"
    other = sign_bundle(rules(), [key(8)], to_founding(rules(), "other", who(8), NOW))
    with pytest.raises(MalformedError) as raised:
        join([parts[0], other])
    assert raised.value.code == "moderator.bundle"
    with pytest.raises(RefusedError) as refused:
        bundle(99, found=False)
    assert refused.value.code == "moderator.no-rules"


def test_two_rules_of_one_id() -> None:
    stated = rules()
    changed = replace(stated, rules=(replace(stated.rules[0], fnc_s=stated.rules[1].fnc_s),))
    with pytest.raises(MalformedError) as raised:
        join([WHOLE, sign_bundle(changed, [key(8)])])
    assert raised.value.code == "moderator.duplicate-id"


def test_a_signature_of_somebody_else_does_not_count() -> None:
    first, *rest = WHOLE.rules
    forged = replace(first, key=key(99).public, signature=key(99).sign(canonical(first.body)))
    with pytest.raises(RefusedError) as raised:
        replace(WHOLE, rules=(forged, *rest)).verify()
    assert raised.value.code == "evolution.wrong-key"
    bent = replace(first, signature=flipped(first.signature))
    with pytest.raises(RefusedError) as raised:
        replace(WHOLE, rules=(bent, *rest)).verify()
    assert raised.value.code == "key.bad-signature"
    assert WHOLE.founding is not None
    with pytest.raises(RefusedError):
        replace(WHOLE, founding=replace(WHOLE.founding, signature=first.signature)).verify()


def test_one_form_alone() -> None:
    assert WHOLE.founding is not None
    founding, rest = WHOLE.founding.to_sexp(), [rule.to_sexp() for rule in WHOLE.rules]
    assert read_bundle((HEAD, founding, *rest)) == WHOLE
    for value in ((HEAD, *rest, founding), (HEAD, founding, founding), (b"rules", founding), HEAD, (HEAD, b"x")):
        with pytest.raises(PenstockError):
            read_bundle(value)


@given(st.integers(0, len(OCTETS) - 1), st.binary(min_size=1, max_size=3))
@settings(max_examples=examples(80), deadline=None)
def test_any_octets_are_refused_or_verified_as_signed(place: int, instead: bytes) -> None:
    octets = OCTETS[:place] + instead + OCTETS[place + len(instead) :]
    try:
        verified = read_bundle(parse_canonical(octets)).verify()
    except (MalformedError, RefusedError):
        return
    assert verified.rules == WHOLE.verify().rules
