"""What follows from 5-tuples: quorums, nested and changing, and bags that would never end."""

import pytest
from tests.trust.kit import CURRENT, DAY, FUTURE, NOW, PAST, name, refused, tag, who

from penstock.trust.certificates import Subject, Threshold
from penstock.trust.discovery import Closure, FiveTuple, FourTuple, _Flows, dominates
from penstock.trust.limits import TrustLimits
from penstock.trust.tags import ANY, Tag, intersect
from penstock.trust.validity import ALWAYS, Validity

ROOT, P, Q = 50, 51, 52


def five(issuer: int | None, subject: int | Subject, granted: Tag = ANY, *, propagate: bool = True) -> FiveTuple:
    about = who(subject) if isinstance(subject, int) else subject
    by = None if issuer is None else who(issuer)
    return FiveTuple(by, about, propagate, granted, ALWAYS, (f"{issuer}>{subject}",))


def held(
    fives: list[FiveTuple],
    *quorums: Threshold,
    by: int | Threshold = ROOT,
    who_asks: int = P,
    fours: tuple[FourTuple, ...] = (),
) -> list[FiveTuple]:
    closure = Closure(fives, fours, {quorum.principal: quorum for quorum in quorums})
    root = by.principal if isinstance(by, Threshold) else who(by)
    found = closure.grants([FiveTuple(None, root, True, ANY, ALWAYS)], who(who_asks))
    assert not closure.truncated
    return found


TWO = Threshold(2, (who(1), who(2), who(3)))


def test_k_members_are_needed() -> None:
    shares = [five(member, P) for member in (1, 2, 3)]
    given = five(ROOT, TWO)
    assert not held([given])
    assert not held([given, shares[0]])
    assert not held([given, shares[2]])
    for left, right in ((0, 1), (0, 2), (1, 2)):
        assert held([given, shares[left], shares[right]])
    assert held([given, *shares])


def test_one_member_twice_is_one_member() -> None:
    twice = [five(1, P, tag("(q a)")), five(1, P, tag("(q)")), five(1, 4), five(4, P)]
    assert not held([five(ROOT, TWO), *twice])


def test_shares_may_come_by_detours() -> None:
    assert held([five(ROOT, TWO), five(1, 4), five(4, 5), five(5, P), five(2, P)])
    # One member may hand its share to another, who then has two.
    assert held([five(ROOT, TWO), five(1, 2)], who_asks=2)
    assert not held([five(ROOT, TWO), five(1, 2)], who_asks=1)


def test_what_k_members_pass_on_is_what_they_all_pass_on() -> None:
    (found,) = held([five(ROOT, TWO), five(1, P, tag("(q (* set a b))")), five(2, P, tag("(q (* set b c))"))])
    assert found.tag == tag("(q b)")
    assert not held([five(ROOT, TWO), five(1, P, tag("(q a)")), five(2, P, tag("(q c)"))])
    pairs = held(
        [five(ROOT, TWO), *(five(i, P, tag(f"(q (* set {s}))")) for i, s in ((1, "a b"), (2, "b c"), (3, "c a")))]
    )
    assert {found.tag for found in pairs} == {tag("(q a)"), tag("(q b)"), tag("(q c)")}


def test_only_what_all_k_let_pass_may_be_passed_on() -> None:
    last = five(P, Q)
    assert not held([five(ROOT, TWO), five(1, P), five(2, P, propagate=False), last], who_asks=Q)
    assert held([five(ROOT, TWO), five(1, P), five(2, P), last], who_asks=Q)


def test_a_quorum_that_may_not_pass_on_does_not() -> None:
    given = five(ROOT, TWO, propagate=False)
    assert not held([given, five(1, P), five(2, P), five(3, P)])
    # But whoever is k members in one has it.
    names = (FourTuple(who(9), b"n", who(P), ALWAYS),)
    both = Threshold(2, (who(P), name(9, "n"), who(3)))
    (found,) = held([five(ROOT, both, propagate=False)], fours=names)
    assert not found.propagate


def test_a_member_may_be_a_name_or_a_quorum() -> None:
    names = tuple(FourTuple(who(9), b"staff", who(member), ALWAYS) for member in (1, 2))
    inner = Threshold(2, (who(4), who(5)))
    outer = Threshold(2, (name(9, "staff"), inner, who(6)))
    given = five(ROOT, outer)
    assert not held([given, five(1, P), five(2, P)], fours=names)
    assert not held([given, five(1, P), five(4, P)], fours=names)
    assert held([given, five(1, P), five(4, P), five(5, P)], fours=names)
    assert held([given, five(2, P), five(6, P)], fours=names)


def test_a_quorum_by_its_hash() -> None:
    shares = [five(1, P), five(2, P)]
    assert not held([five(ROOT, TWO.principal), *shares])
    assert held([five(ROOT, TWO.principal), *shares], TWO)
    assert held(shares, TWO, by=TWO)
    inner = Threshold(1, (TWO.principal, who(9)))
    assert held([five(ROOT, inner), *shares], TWO)


def test_two_of_three_replace_the_third() -> None:
    """Section 3.4: a quorum evolves, and the one who left has no share in the new one."""
    after = Threshold(2, (who(1), who(2), who(4)))
    change = [five(1, after), five(2, after)]
    assert not held([*change[:1], five(1, P), five(4, P)], TWO, by=TWO)
    assert held([*change, five(1, P), five(4, P)], TWO, by=TWO)
    assert held([*change, five(2, P), five(4, P)], TWO, by=TWO)
    assert not held([*change, five(4, P)], TWO, by=TWO)
    # The old quorum keeps what it had: nothing but dates takes authority back.
    assert held([*change, five(1, P), five(3, P)], TWO, by=TWO)


def test_quorums_that_feed_each_other_end() -> None:
    first, second = Threshold(2, (who(1), who(2))), Threshold(2, (who(3), who(4)))
    ring = [five(1, second), five(2, second), five(3, first), five(4, first)]
    assert not held(ring, first, second, by=first)
    assert held([*ring, five(3, P), five(4, P)], first, second, by=first)
    assert held([*ring, five(3, 1), five(4, 1)], first, second, by=first, who_asks=1)


def test_one_key_in_many_quorums() -> None:
    one, other = Threshold(2, (who(1), who(2))), Threshold(2, (who(1), who(3)))
    fives = [five(ROOT, 9), five(9, one), five(ROOT, other), five(1, P), five(3, P)]
    assert held(fives)
    assert not held([fives[0], fives[1], fives[3], fives[4]])
    # The second quorum is met when the flow of its only member has long come to rest.
    alone = Threshold(1, (who(1),))
    assert held([five(ROOT, other), five(1, P), five(ROOT, 4), five(4, 5), five(5, 6), five(6, 7), five(7, alone)])


def test_quorums_that_all_lead_to_each_other_cost_little() -> None:
    """Fifteen quorums of two: followed chain by chain that would be more than 15! ways."""
    quorums = [Threshold(2, (who(100 + 2 * i), who(101 + 2 * i))) for i in range(15)]
    fives = [five(ROOT, quorums[0])]
    for i, quorum in enumerate(quorums):
        fives += [five(100 + 2 * i + side, other) for side in (0, 1) for other in quorums if other is not quorum]
    assert not held(fives)
    assert held([*fives, five(128, P), five(129, P)])


def test_dates_of_shares() -> None:
    def share(member: int, validity: Validity) -> FiveTuple:
        return FiveTuple(who(member), who(P), True, ANY, validity, (str(member),))

    (found,) = held([five(ROOT, TWO), share(1, CURRENT), share(2, ALWAYS)])
    assert found.validity == CURRENT
    assert not held([five(ROOT, TWO), share(1, PAST), share(2, FUTURE)])


def test_dominates() -> None:
    wide, narrow = five(1, 2, tag("(q)")), five(1, 2, tag("(q a)"))
    assert dominates(wide, narrow)
    assert not dominates(narrow, wide)
    assert not dominates(five(1, 2, propagate=False), narrow)
    short = FiveTuple(who(1), who(2), True, ANY, CURRENT)
    assert dominates(five(1, 2), short)
    assert not dominates(short, five(1, 2))


def ladder(layers: int, width: int) -> list[FiveTuple]:
    steps = [five(ROOT, 1000 + i) for i in range(width)]
    for layer in range(layers):
        at, above = 1000 + width * (layer + 1), 1000 + width * layer
        steps += [
            five(above + i, at + j, tag(f"(q (* set common l{layer}-{i}-{j}))"))
            for i in range(width)
            for j in range(width)
        ]
    return steps


def test_grants_are_bounded_and_what_is_left_out_is_said() -> None:
    fives = [five(ROOT, P, tag(f"(q a{i})")) for i in range(10)]
    closure = Closure(fives, [], {}, limits=TrustLimits(grants_per_principal=4))
    found = closure.grants([FiveTuple(None, who(ROOT), True, ANY, ALWAYS)], who(P))
    assert len(found) == 4
    assert closure.truncated


def test_work_is_bounded_and_what_is_left_out_is_said() -> None:
    fives = [five(i, j, tag(f"(q (* set a{i} b{j} c))")) for i in range(1, 20) for j in range(1, 20) if i != j]
    closure = Closure([five(ROOT, 1), *fives], [], {})
    closure.effort = 500
    found = closure.grants([FiveTuple(None, who(ROOT), True, ANY, ALWAYS)], who(2))
    assert closure.truncated
    assert all(grant.subject == who(2) for grant in found)


def test_long_chains_are_cut_and_that_is_said() -> None:
    fives = [five(i, i + 1) for i in range(1, 12)]
    entry = FiveTuple(None, who(1), True, ANY, ALWAYS)
    closure = Closure(fives, [], {}, limits=TrustLimits(chain_length=10))
    assert closure.grants([entry], who(11))
    assert closure.truncated
    assert not Closure(fives, [], {}, limits=TrustLimits(chain_length=10)).grants([entry], who(12))
    enough = Closure(fives, [], {}, limits=TrustLimits(chain_length=11))
    assert enough.grants([entry], who(12))
    assert not enough.truncated


def test_a_list_that_would_be_too_long_is_refused() -> None:
    entry = FiveTuple(None, who(ROOT), True, ANY, ALWAYS)
    fives = [five(ROOT, 100 + i) for i in range(30)]
    assert len(Closure(fives, [], {}, exhaustive=True).follow([entry])) == 31
    with refused("chain.limit"):
        Closure(fives, [], {}, exhaustive=True, limits=TrustLimits(certificates=20)).follow([entry])
    busy = Closure(ladder(3, 3), [], {}, exhaustive=True)
    busy.effort = 20
    with refused("chain.limit"):
        busy.follow([entry])


def test_a_quorum_of_which_every_choice_differs_is_bounded() -> None:
    """Any 16 of 32 who all pass on something else: half a milliard choices."""
    quorum = Threshold(16, tuple(who(i) for i in range(1, 33)))
    fives = [five(i, P, tag(f"(q (* set {' '.join(f'a{j}' for j in range(32) if j != i)}))")) for i in range(1, 33)]
    closure = Closure(fives, [], {quorum.principal: quorum})
    found = closure.grants([FiveTuple(None, quorum.principal, True, ANY, ALWAYS)], who(P))
    assert found
    assert closure.truncated


def test_a_right_that_cannot_be_intersected_spoils_nothing_else() -> None:
    """Two sets of a hundred patterns each, of which all pairs would have to be kept."""
    monsters = [
        tag(f"(q (* set {' '.join(f'(* glob {start}{number:03}{end})' for number in range(100))}))")
        for start, end in (("a", "*b"), ("a*", "b"))
    ]
    with refused("tag.limit"):
        intersect(*monsters)
    fives = [five(ROOT, 1, monsters[0]), five(1, P, monsters[1]), five(ROOT, P, tag("(q x)"))]
    closure = Closure(fives, [], {})
    (found,) = closure.grants([FiveTuple(None, who(ROOT), True, ANY, ALWAYS)], who(P))
    assert found.tag == tag("(q x)")
    assert closure.truncated
    with refused("tag.limit"):
        Closure(fives, [], {}, exhaustive=True).follow([FiveTuple(None, who(ROOT), True, ANY, ALWAYS)])


@pytest.mark.parametrize("exhaustive", [False, True])
def test_cycles_of_delegations_end(exhaustive: bool) -> None:
    fives = [five(1, 2, tag("(q)")), five(2, 3, tag("(q (* set a b))")), five(3, 1), five(3, 2), five(2, 2)]
    closure = Closure(fives, [], {}, exhaustive=exhaustive)
    found = closure.follow([FiveTuple(None, who(1), True, tag("(q)"), Validity.between(NOW, NOW + DAY))])
    assert {grant.subject for grant in found} == {who(1), who(2), who(3)}


def test_all_tags_of_a_question_share_one_bound_on_the_work() -> None:
    """Hundreds of rights that are much work each, all of them from somebody who may pass on."""
    sets = [
        tag(f"(q (* set {' '.join(f'(a{n} (* glob *{n}x{i}*) (* set b c))' for i in range(60))}))") for n in range(40)
    ]
    fives = [five(ROOT, P, one) for one in sets] + [five(ROOT, P, tag("(q)"))]
    closure = Closure(fives, [], {}, limits=TrustLimits(chain_steps=2_000))
    entry = FiveTuple(None, who(ROOT), True, tag("(q (* set (a1 (* glob *x*)) (a2 (* glob *x*))))"), ALWAYS)
    flows = _Flows(closure, [entry])
    assert flows._room.steps < 0
    assert closure.truncated
