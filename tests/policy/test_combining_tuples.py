"""Decision tuples: the paper's own, what overlaps and what is left open, and the standard's algorithms as tuples."""

from collections.abc import Sequence
from functools import cache
from itertools import chain, combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.kit import NOW, policy, request, rule
from tests.policy.test_combining import Said

from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.policy.combining import PLAIN, POLICY_ALGORITHMS, RULE_ALGORITHMS, Automaton, DecisionTuple
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.language.results import XacmlDecision

P, D, NA = XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE
IN_P, IN_D, IN_DP = XacmlDecision.INDETERMINATE_P, XacmlDecision.INDETERMINATE_D, XacmlDecision.INDETERMINATE_DP
FIVE = {"P": "NA* P .*", "D": "NA* D .*", "NA": "NA*", "IN": "NA* IN .*"}
SIX = {"P": "#P > 0 and #D = 0 and #IN = 0", "D": "#D > 0", "NA": "∅", "IN": "#D = 0 and #IN > 0"}
SEVEN = {"P": "#P > 1", "D": "#P < 1 and #D > 0", "NA": "∅", "IN": "#P < 1 and #D = 0 and #IN > 0"}


def test_the_first_that_is_applicable() -> None:
    first = DecisionTuple.of(FIVE)
    assert first.gap() is None
    assert first.result([NA, NA, D, P]) is D
    assert first.result([]) is NA
    assert first.result([NA, IN_P, P]) is IN_DP


def test_the_papers_own_tuples_have_gaps() -> None:
    six, seven = DecisionTuple.of(SIX), DecisionTuple.of(SEVEN)
    assert six.result([P, NA]) is P
    assert six.result([P, D, IN_D]) is D
    assert six.result([NA]) is None
    assert str(six.gap()) in ("no decision at all", "1 of NA")
    assert seven.result([P, P, D]) is P
    # One permit is neither more than one nor less than one.
    assert seven.result([P]) is None
    gap = seven.gap()
    assert gap is not None


def test_what_is_left_open_is_indeterminate() -> None:
    assert DecisionTuple.of(SEVEN).combine([Said(P)], None).decision is IN_DP


@pytest.mark.parametrize(
    ("elements", "witness"),
    [
        ({"P": "P .*", "D": ". D"}, ("P", "D")),
        ({"P": "#P > 1", "D": "#P < 3"}, ("2 of P",)),
    ],
)
def test_what_two_accept_is_refused_and_shown(elements: dict[str, str], witness: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError) as caught:
        DecisionTuple.of(elements)
    assert caught.value.code == "combining.overlap"
    assert caught.value.fields["witness"] == witness


def test_a_majority_can_be_counted() -> None:
    weak = DecisionTuple.of({"P": "#P > #D", "D": "#D > #P", "NA": "#P = 0 and #D = 0 and #IN = 0"})
    assert weak.result([P, P, D]) is P
    assert weak.result([P, D]) is None
    assert weak.result([NA]) is NA


@pytest.mark.parametrize(
    ("elements", "code"),
    [
        ({"X": "P"}, "combining.elements"),
        ({"P": "(P"}, "combining.expression"),
        ({"P": "P )"}, "combining.expression"),
        ({"P": "*"}, "combining.expression"),
        ({"P": "Q"}, "combining.expression"),
        ({"P": "P & D"}, "combining.expression"),
        ({"P": "#P >"}, "selector.syntax"),
        ({"P": "#P = 'x'"}, "selector.type"),
    ],
)
def test_what_is_no_tuple_is_told(elements: dict[str, str], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        DecisionTuple.of(elements)
    assert caught.value.code.split(".")[0] == code.split(".", maxsplit=1)[0]


@given(st.text("PDNAI*+?|(). #", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        made = DecisionTuple.of({"P": text})
    except PenstockError:
        return
    assert made.result([P, D, NA]) in (P, None)


EXPRESSIONS = ["NA* P .*", "(P | D)+", "(P D)*", "none", "P? D?", "((P | NA) D)+ IN", ". . ."]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_automata_accept_what_expressions_mean(text: str) -> None:
    import re  # noqa: PLC0415  # what it is compared with

    letters = {"P": "p", "D": "d", "NA": "n", "IN": "i"}
    pattern = re.sub(r"[A-Z]+|none| ", lambda found: letters.get(found[0], "(?!)" if found[0] == "none" else ""), text)
    automaton = Automaton.of(text, PLAIN)
    for length in range(5):
        for sequence in product(PLAIN, repeat=length):
            wanted = re.fullmatch(pattern, "".join(letters[letter] for letter in sequence)) is not None
            assert automaton.accepts(sequence) is wanted, (text, sequence)


BUILT_IN = {**RULE_ALGORITHMS, **POLICY_ALGORITHMS}
ELEMENTS = {name: one.elements for name, one in BUILT_IN.items()}
COUNTED = {name: elements for name, elements in ELEMENTS.items() if "#" in elements["P"]}


@cache
def made(elements: tuple[tuple[str, str], ...]) -> DecisionTuple:
    return DecisionTuple.of(dict(elements))


def built_in(name: str, sequence: Sequence[XacmlDecision]) -> XacmlDecision:
    return BUILT_IN[name].combine([Said(one) for one in sequence], None).decision


@pytest.mark.parametrize("name", COUNTED)
def test_those_that_count_are_equal(name: str) -> None:
    """All constraints ask only whether there are any, and so do the algorithms: all sets of decisions are enough."""
    found = made(tuple(COUNTED[name].items()))
    assert found.gap() is None
    assert all(part.split()[-1].strip("()") == "0" for text in COUNTED[name].values() for part in _atoms(text))
    subsets = chain.from_iterable(combinations(XacmlDecision, size) for size in range(len(XacmlDecision) + 1))
    for sequence in chain(subsets, product(XacmlDecision, repeat=3)):
        assert found.result(sequence) is built_in(name, sequence), sequence
        assert found.result(sequence) is built_in(name, sequence[::-1]), sequence


def _atoms(text: str) -> list[str]:
    return [] if text == "none" else text.replace(" or ", " and ").split(" and ")


@pytest.mark.parametrize("name", sorted(ELEMENTS.keys() - COUNTED.keys()))
def test_those_that_go_by_order_are_equal(name: str) -> None:
    """None uses more than the first two that are applicable, or by places after the third: five are enough."""
    found = made(tuple(ELEMENTS[name].items()))
    assert found.gap() is None
    for length in range(6):
        for sequence in product(XacmlDecision, repeat=length):
            assert found.result(sequence) is built_in(name, sequence), sequence


def test_it_can_be_used_wherever_an_algorithm_is() -> None:
    two = DecisionTuple.of({"P": "#P > 1", "D": "#P <= 1"})
    assert DecisionTuple.of_id(two.id) == two
    name = two.id.replace("&", "&amp;")
    one = CompiledPolicy(policy(rule(name="a"), combining=name))
    both = CompiledPolicy(policy(rule(name="a"), rule(name="b"), combining=name))
    assert decide(one.evaluate, request(), NOW).results[0].decision is D
    assert decide(both.evaluate, request(), NOW).results[0].decision is P
