"""The laws of tags, on random tags and all requests of a small universe, against the naive model."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.tags_model import REQUESTS, holds, lists_of_tags, naive, simple
from tests.trust.tags_model import tags as sexps

from penstock.codec.sexp import SExp, canonical
from penstock.trust import tags
from penstock.trust.tags import NOTHING, Tag

either = sexps | lists_of_tags


def accepted(tag: Tag | None) -> list[SExp]:
    return [] if tag is None else [r for r in REQUESTS if tags.matches(r, tag, holds)]


@given(either)
@settings(deadline=None, max_examples=examples(200))
def test_the_normal_form_means_what_was_written(sexp: SExp) -> None:
    tag = tags.parse_tag(sexp)
    expected = [r for r in REQUESTS if naive(r, sexp)]
    assert accepted(tag) == expected
    again = tags.to_sexp(tag)
    assert [r for r in REQUESTS if naive(r, again)] == expected
    assert tags.parse_tag(again) == tag
    assert hash(tags.parse_tag(again)) == hash(tag)
    assert canonical(tags.to_sexp(tags.parse_tag(again))) == canonical(again)


@given(either | simple, either | simple)
@settings(deadline=None, max_examples=examples(600))
def test_the_law(a: SExp, b: SExp) -> None:
    both = tags.intersect(tags.parse_tag(a), tags.parse_tag(b))
    expected = [r for r in REQUESTS if naive(r, a) and naive(r, b)]
    assert accepted(both) == expected
    if both is None:
        assert not expected
        return
    assert both != NOTHING
    written = tags.to_sexp(both)
    assert [r for r in REQUESTS if naive(r, written)] == expected
    assert tags.parse_tag(written) == both


@given(either, either)
@settings(deadline=None, max_examples=examples(200))
def test_intersection_does_not_depend_on_the_order(a: SExp, b: SExp) -> None:
    s, t = tags.parse_tag(a), tags.parse_tag(b)
    one, other = tags.intersect(s, t), tags.intersect(t, s)
    assert accepted(one) == accepted(other)
    assert one == other


@given(either, either, either)
@settings(deadline=None, max_examples=examples(200))
def test_intersection_is_associative(a: SExp, b: SExp, c: SExp) -> None:
    s, t, u = (tags.parse_tag(sexp) for sexp in (a, b, c))
    left, right = tags.intersect(s, t), tags.intersect(t, u)
    left = None if left is None else tags.intersect(left, u)
    right = None if right is None else tags.intersect(s, right)
    assert accepted(left) == accepted(right)


@given(either)
@settings(deadline=None, max_examples=examples(200))
def test_intersection_with_itself_and_with_everything(sexp: SExp) -> None:
    tag, copy = tags.parse_tag(sexp), tags.parse_tag(sexp)
    expected = None if tag == NOTHING else tag
    assert tags.intersect(tag, tag) == expected
    assert accepted(tags.intersect(tag, copy)) == accepted(tag)
    assert tags.intersect(tag, tags.ANY) == tags.intersect(tags.ANY, tag) == expected
    assert tags.intersect(tag, NOTHING) is None
    assert tags.covers(tag, copy)
    assert tags.covers(tags.ANY, tag)
    assert tags.covers(tag, NOTHING)


@given(either | simple, either | simple)
@settings(deadline=None, max_examples=examples(400))
def test_coverage_is_sound(a: SExp, b: SExp) -> None:
    s, t = tags.parse_tag(a), tags.parse_tag(b)
    if tags.covers(s, t):
        assert set(accepted(t)) <= set(accepted(s))
    both = tags.intersect(s, t)
    if both is not None:
        assert set(accepted(both)) <= set(accepted(s)) & set(accepted(t))


@given(either, st.data())
@settings(deadline=None, max_examples=examples(200))
def test_a_set_covers_its_members_and_parts_of_it(sexp: SExp, data: st.DataObject) -> None:
    others = data.draw(st.lists(either, max_size=3), "others")
    whole = tags.parse_tag((b"*", b"set", sexp, *others))
    assert tags.covers(whole, tags.parse_tag(sexp))


@given(either)
@settings(deadline=None, max_examples=examples(200))
def test_without_evidence_no_predicate_holds(sexp: SExp) -> None:
    tag = tags.parse_tag(sexp)
    for request in REQUESTS:
        assert not tags.matches(request, tag) or tags.matches(request, tag, holds)
        assert not tags.matches(request, tag, lambda _: False) or tags.matches(request, tag)
