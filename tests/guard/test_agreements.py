"""Agreements as they are signed: one written form, and nothing in them that cannot be enforced."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.guard.agreed_kit import ANN, agreement, profile, types
from tests.moderator.kit import event, rule
from tests.trust.kit import CURRENT, key, refused, who

from penstock.codec.sexp import SExp, canonical
from penstock.crypto import digest
from penstock.errors import MalformedError, PenstockError
from penstock.guard import Agreement, AgreementMode
from penstock.model import Principal, TypeKey
from penstock.model.tree import TreeScope, TypeTree
from penstock.moderator.rules.rules import Mode, SubscribeRule
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import parse
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import parse_signed, read_signed, read_statements, sign_value, statements_to_sexp

WISH = SubscribeRule("w", event("A1"), ANN, ANN, parse("company = 'B'"), CURRENT)
WHOLE = agreement(
    rule("b", "A1", "role = 'engineer' AND age >= 18", "licensed"),
    WISH,
    rule("a", "X"),
    scope=TreeScope.UPWARD,
    mode=Mode.LITERAL,
    combining=AgreementMode.BOTH,
    described_by=[who(4), who(3)],
)


def test_written_and_read() -> None:
    signed = sign_value(WHOLE, key(1))
    read = parse_signed(signed.to_bytes(), Agreement).verify().value
    assert read == WHOLE
    assert [one.id for one in read.rules] == ["a", "b", "w"]
    assert [one.id for one in read.publish_rules] == ["a", "b"]


def test_the_order_in_which_things_are_given_does_not_matter() -> None:
    turned = replace(WHOLE, rules=WHOLE.rules[::-1], described_by=WHOLE.described_by[::-1])
    assert canonical(turned.to_sexp()) == canonical(WHOLE.to_sexp())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rules": (rule("a", "X"), rule("a", "A1"))}, "agreement.duplicate-rule"),
        ({"owner": who(7)}, "agreement.no-types"),
        ({"name": "two words"}, "evolution.malformed"),
        ({"rules": (rule("a", "nowhere"),)}, "moderator.unknown-type"),
        ({"rules": (rule("a", "X", "shoe = 43"),)}, "moderator.unknown-attribute"),
        ({"rules": (rule("a", "X", "role = 'king'"),)}, "moderator.domain"),
        ({"publisher_attribute": "no name"}, "name.malformed"),
    ],
)
def test_what_is_no_agreement(change: dict[str, object], code: str) -> None:
    with refused(code):
        replace(WHOLE, **change)  # type: ignore[arg-type]  # its fields


def test_what_is_written_otherwise_is_not_read() -> None:
    signed = sign_value(WHOLE, key(1))
    body = WHOLE.to_sexp()
    assert isinstance(body, tuple)
    for place, part in enumerate(body[1:], start=1):
        assert isinstance(part, tuple)
        changes: list[tuple[SExp, ...]] = [(), ((part[0], b"?", b"?"),), (part, (b"unheard-of", b"1"))]
        for other in changes:
            changed: SExp = (*body[:place], *other, *body[place + 1 :])
            with pytest.raises(MalformedError):
                read_signed(replace(signed, body=changed, digest=digest(changed)).to_sexp(), Agreement)


def test_it_concerns_its_owners_types_in_the_tree_and_below() -> None:
    found = types()
    above = agreement(tree={event("A1"): None})
    assert {key.name for key, one in found.items() if above.concerns(one.event_type)} == {"A1", "A10"}
    foreign = replace(above, owner=who(5), vocabulary=shared(who(5)))
    assert not any(foreign.concerns(one.event_type) for one in found.values())


def shared(other: Principal) -> Vocabulary:
    """Return a tree in which somebody else has a type too."""
    tree = TypeTree.of({event("A1"): None, TypeKey(other, "B"): event("A1")})
    return replace(WHOLE.vocabulary, tree=tree)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_whatever_a_file_holds_it_is_read_or_refused(data: st.DataObject) -> None:
    whole = canonical(statements_to_sexp([sign_value(WHOLE, key(1)), profile(ANN, role="engineer")]))
    place, octets = data.draw(st.integers(0, len(whole))), data.draw(st.binary(max_size=4))
    changed = whole[:place] + octets + whole[place + data.draw(st.integers(0, 4)) :]
    try:
        read = [one.verify() for one in read_statements(changed, Agreement, ProfileClaim)]
    except PenstockError:
        return
    assert canonical(statements_to_sexp(read)) == whole
