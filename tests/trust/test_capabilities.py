"""The vocabulary of rights: what each place means, what is refused, and what is flagged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import CURRENT, name, refused, tag, who

from penstock.codec.sexp import parse
from penstock.errors import PenstockError
from penstock.model.names import AttributeId, NetworkName, TypeName
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Kind
from penstock.selector import parse as parse_selector
from penstock.trust.capabilities import (
    BROKER_RIGHTS,
    BoundSelector,
    Right,
    RightTerms,
    attribute_from_sexp,
    attribute_to_sexp,
    describe_tag,
    event_tag,
    flags,
    network_request,
    network_tag,
    read_terms,
    type_request,
)
from penstock.trust.certificates import Authorisation, NameCertificate
from penstock.trust.tags import ANY, NOTHING, Tag, covers, intersect, parse_tag, to_sexp
from penstock.trust.validity import ALWAYS

OWNER = who(1)
NAME = TypeName(OWNER, "uk.gov.pito.Numberplate", "7")
PLATES = EventType.of(
    TypeDefinition(
        NAME,
        (
            AttributeDefinition("numberplate", "0", AttributeSpec(Kind.STRING)),
            AttributeDefinition("timestamp", "1", AttributeSpec(Kind.TIMESTAMP)),
            AttributeDefinition("location", "2", AttributeSpec(Kind.STRING)),
        ),
    )
)
PLATE, TIME, PLACE = (attribute.id for attribute in PLATES.attributes)
SUBSCRIBE = type_request(NAME, Right.SUBSCRIBE)


def allowed(granted: Tag, right: Right = Right.SUBSCRIBE, of: TypeName = NAME) -> bool:
    return intersect(granted, type_request(of, right)) is not None


def terms(*grants: Tag) -> RightTerms:
    reduced: Tag = SUBSCRIBE
    for granted in grants:
        narrower = intersect(reduced, granted)
        assert narrower is not None
        reduced = narrower
    return read_terms(reduced, PLATES)


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("uk.gov.pito.*", ["uk.gov.pito.Numberplate", "uk.gov.pito.a.B"], ["uk.gov.pitoX", "uk.gov.pito", "de.pito.X"]),
        ("*.Numberplate", ["uk.gov.pito.Numberplate", "x.Numberplate"], ["Numberplate", "x.Numberplates"]),
        ("uk.*.Numberplate", ["uk.gov.Numberplate", "uk.gov.pito.Numberplate"], ["uk.Numberplate", "us.x.Numberplate"]),
        ("*pito*plate", ["uk.gov.pito.Numberplate"], ["uk.gov.Numberplate", "pito.plates"]),
        ("uk.gov.pito.Numberplate", ["uk.gov.pito.Numberplate"], ["uk.gov.pito.Numberplates", "uk.gov.pito"]),
        ("*", ["a", "uk.gov.pito.Numberplate"], []),
    ],
)
def test_name_patterns(pattern: str, names: list[str], others: list[str]) -> None:
    granted = event_tag(OWNER, pattern)
    assert [allowed(granted, of=TypeName(OWNER, one)) for one in names] == [True] * len(names)
    assert [allowed(granted, of=TypeName(OWNER, one)) for one in others] == [False] * len(others)
    assert not allowed(granted, of=TypeName(who(2), "uk.gov.pito.Numberplate"))


@given(
    st.text("ab.", min_size=1, max_size=6),
    st.text("ab*.", min_size=1, max_size=5),
    st.text("ab*.", min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=examples(100))
def test_two_patterns_grant_what_both_grant(asked: str, one: str, other: str) -> None:
    request = (b"event-type", str(OWNER).encode(), asked.encode())
    both = intersect(event_tag(OWNER, one), event_tag(OWNER, other))
    alone = [intersect(request, event_tag(OWNER, pattern)) is not None for pattern in (one, other)]
    assert (both is not None and intersect(request, both) is not None) == all(alone)


def test_what_is_left_out_means_all() -> None:
    assert event_tag() == tag("(event-type)")
    assert event_tag(OWNER) == parse_tag((b"event-type", str(OWNER).encode()))
    assert event_tag(OWNER, None, None, None) == event_tag(OWNER)
    for right in Right:
        if not right.on_network:
            assert allowed(event_tag(OWNER), right)
    assert terms(event_tag()) == RightTerms(None, {}, (), ())


def test_versions() -> None:
    assert allowed(event_tag(OWNER, None, "7"))
    assert not allowed(event_tag(OWNER, None, "8"))


def test_rights_of_networks() -> None:
    network = NetworkName(OWNER, "UK Police Network")
    granted = network_tag(OWNER, network.name, [Right.CONNECT])
    assert intersect(granted, network_request(network, Right.CONNECT)) == network_request(network, Right.CONNECT)
    assert intersect(granted, network_request(network, Right.INSTALL)) is None
    assert intersect(granted, network_request(NetworkName(OWNER, "Other"), Right.CONNECT)) is None
    assert intersect(granted, network_request(NetworkName(who(2), network.name), Right.CONNECT)) is None
    assert intersect(network_tag(), network_request(network, Right.INSTALL)) is not None
    # Rights do not imply each other: who may connect is not a broker.
    assert intersect(granted, network_request(network, Right.BROKER)) is None
    both = network_tag(OWNER, network.name, BROKER_RIGHTS)
    assert all(intersect(both, network_request(network, right)) is not None for right in BROKER_RIGHTS)
    assert intersect(network_tag(OWNER, network.name, [Right.BROKER]), network_request(network, Right.CONNECT)) is None
    assert intersect(network_tag(), SUBSCRIBE) is None
    assert intersect(event_tag(), network_request(network, Right.CONNECT)) is None


def test_manage_covers_its_operations_and_not_the_other_way_round() -> None:
    operations = [Right.MANAGE_ADD, Right.MANAGE_REMOVE, Right.MANAGE_RENAME, Right.MANAGE_RETYPE]
    whole = event_tag(OWNER, rights=[Right.MANAGE])
    for operation in operations:
        single = event_tag(OWNER, rights=[operation])
        assert covers(whole, single)
        assert not covers(single, whole)
        assert intersect(whole, type_request(NAME, operation)) == type_request(NAME, operation)
        assert intersect(single, type_request(NAME, Right.MANAGE)) != type_request(NAME, Right.MANAGE)
        assert [allowed(single, other) for other in operations] == [other is operation for other in operations]
    all_four = event_tag(OWNER, rights=operations)
    assert intersect(all_four, type_request(NAME, Right.MANAGE)) != type_request(NAME, Right.MANAGE)
    for right in (Right.PUBLISH, Right.SUBSCRIBE):
        assert not allowed(whole, right)
        assert not allowed(event_tag(OWNER, rights=[right]), Right.MANAGE)


def test_a_request_is_about_its_own_resource() -> None:
    for right in Right:
        with refused("capability.right"):
            if right.on_network:
                type_request(NAME, right)
            else:
                network_request(NetworkName(OWNER, "n"), right)


@pytest.mark.parametrize("rights", [[], [Right.CONNECT], [Right.SUBSCRIBE, Right.INSTALL]])
def test_rights_of_another_resource(rights: list[Right]) -> None:
    with refused("capability.right"):
        event_tag(OWNER, rights=rights)


@pytest.mark.parametrize("rights", [[], [Right.SUBSCRIBE], [Right.CONNECT, Right.MANAGE]])
def test_rights_of_another_resource_on_networks(rights: list[Right]) -> None:
    with refused("capability.right"):
        network_tag(OWNER, "n", rights)


def test_attributes() -> None:
    assert terms(event_tag(attributes=[PLATE, TIME])).attributes == frozenset({PLATE, TIME})
    assert terms(event_tag(attributes=[PLATE, TIME]), event_tag(attributes=[TIME, PLACE])).attributes == frozenset(
        {TIME}
    )
    # Section 5.2.2: attributes that the type does not have are not a mistake.
    gone = AttributeId(OWNER, NAME.name, "99")
    assert terms(event_tag(attributes=[gone])).attributes == frozenset()
    # The beginning of an id means all that begin so.
    mine = (b"event-type", (b"*",), (b"*",), (b"*",), (b"*",), (b"attr", str(OWNER).encode()))
    assert terms(parse_tag(mine)).attributes == frozenset({PLATE, TIME, PLACE})


def test_no_attribute_in_common_is_no_right() -> None:
    both = intersect(event_tag(attributes=[PLATE]), event_tag(attributes=[TIME]))
    assert both is None


def test_forced_values() -> None:
    victoria = event_tag(attributes=[PLATE, TIME], forced={PLACE: "Victoria"})
    found = terms(victoria)
    assert found.attributes == frozenset({PLATE, TIME, PLACE})
    assert dict(found.forced) == {PLACE: "Victoria"}
    assert dict(terms(event_tag(forced={PLACE: "Victoria"}), victoria).forced) == {PLACE: "Victoria"}
    assert terms(event_tag(forced={PLACE: "Victoria"})).attributes is None


def test_two_different_forced_values_are_no_right() -> None:
    assert intersect(event_tag(forced={PLACE: "Victoria"}), event_tag(forced={PLACE: "Euston"})) is None
    assert intersect(event_tag(forced={PLACE: "1"}), event_tag(forced={PLACE: 1})) is None
    both = terms(event_tag(forced={PLACE: "Victoria"}), event_tag(forced={PLATE: "AE05 XYZ"}))
    assert dict(both.forced) == {PLACE: "Victoria", PLATE: "AE05 XYZ"}


def test_a_forced_value_outlives_the_attribute() -> None:
    """It must go on filtering for a reader who may not see the attribute any more."""
    for grants in (
        [event_tag(forced={PLATE: "AE05 XYZ"}), event_tag(attributes=[TIME])],
        [event_tag(attributes=[TIME]), event_tag(attributes=[TIME], forced={PLATE: "AE05 XYZ"})],
    ):
        found = terms(*grants)
        assert found.attributes == frozenset({TIME})
        assert dict(found.forced) == {PLATE: "AE05 XYZ"}


def test_forced_selectors_speak_in_ids() -> None:
    selector = BoundSelector.of("location LIKE 'V%' AND numberplate IS NOT NULL", PLATES)
    found = terms(event_tag(where=[selector]), event_tag(where=[BoundSelector.of("location <> 'Vauxhall'", PLATES)]))
    assert len(found.where) == 2
    assert {used for one in found.where for used in one.attributes} == {PLACE, PLATE}
    assert BoundSelector.from_sexp(selector.to_sexp()) == selector
    # The same selector twice is one.
    assert len(terms(event_tag(where=[selector]), event_tag(where=[selector, selector])).where) == 1


def test_conditions_on_the_environment() -> None:
    found = terms(event_tag(when=["hour BETWEEN 9 AND 17"]), event_tag(when=["load < 0.5"]))
    assert {one.text for one in found.when} == {"hour BETWEEN 9 AND 17", "load < 0.5"}


def test_the_source_is_hidden_if_one_right_of_a_chain_hides_it() -> None:
    whole, hidden = event_tag(), event_tag(source=False)
    assert terms(whole).source
    assert not terms(whole, hidden).source
    assert not terms(hidden, whole).source
    assert describe_tag(hidden)["source"] == "hidden"
    with refused("capability.malformed"):
        terms(parse_tag((b"event-type", *((b"*",),) * 7, b"shown")))


def test_selectors_that_do_not_fit() -> None:
    with refused("selector.unknown-attribute"):
        BoundSelector.of("colour = 'red'", PLATES)
    with refused("selector.type"):
        BoundSelector.of("location > 3", PLATES)
    with refused("capability.unbound"):
        BoundSelector(parse_selector("a = 1 AND b = 2"), {"a": PLATE})
    with refused("selector.syntax"):
        event_tag(when=["hour BETWEEN"])
    with refused("value.nan"):
        event_tag(forced={PLACE: float("nan")})


ID = f'(attr {OWNER} {NAME.name} "0")'
WHO = f'{OWNER} {NAME.name} "7" subscribe'


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("(*)", "capability.malformed"),
        ("event-type", "capability.malformed"),
        (f"(network {OWNER})", "capability.malformed"),
        (f"(* set (event-type {WHO} (*)) (event-type {WHO} (*) (*) (*)))", ""),
        (f"(* set (event-type {WHO} {ID}) (event-type {OWNER}))", ""),
        (f"(event-type {WHO} (*) (*) (*) extra)", "capability.malformed"),
        (f"(event-type {WHO} (*) yes)", "capability.malformed"),
        (f'(event-type {WHO} (*) (* set (* where (sql "1 = 1")) yes))', "capability.malformed"),
        (f'(event-type {WHO} (*) (where (sql "1 = 1")))', "capability.malformed"),
        (f"(event-type {WHO} (*) (* prefix a))", "capability.malformed"),
        (f"(event-type {WHO} (*) (* where (is (attr a b) (string x))))", "capability.malformed"),
        (f"(event-type {WHO} (*) (* where (is (attr a b c) (string x))))", "principal.malformed"),
        (f'(event-type {WHO} (*) (* where (is (attr {OWNER} "b c" d) (string x))))', "name.malformed"),
        (f"(event-type {WHO} (*) (* where (is {ID} (word x))))", "value.malformed"),
        (f'(event-type {WHO} (*) (* where (is {ID} (integer "01"))))', "value.malformed"),
        (f'(event-type {WHO} (*) (* where (sql "a =" (a {ID}))))', "selector.syntax"),
        (f'(event-type {WHO} (*) (* where (sql "a = 1 AND b = 2" (a {ID}))))', "capability.unbound"),
        (f'(event-type {WHO} (*) (* where (sql "a = 1" (a (attr x)))))', "capability.malformed"),
        (f"(event-type {WHO} (*) (*) now)", "capability.malformed"),
        (f"(event-type {WHO} (*) (*) (* where (is {ID} (string x))))", "capability.malformed"),
        (f'(event-type {WHO} (*) (*) (* where (sql "a = 1" (a {ID}))))', "capability.malformed"),
        (f'(event-type {WHO} (*) (*) (* where (sql "hour >")))', "selector.syntax"),
    ],
)
def test_what_is_not_understood_grants_nothing(written: str, code: str) -> None:
    granted = parse_tag(parse(written.encode()))
    if not code:
        # Such a set is one wide right: parsing has already made it so.
        assert read_terms(granted, PLATES).attributes is None
        return
    with refused(code):
        read_terms(granted, PLATES)


@pytest.mark.parametrize(
    "place", ["subscribe", "(* prefix a)", '(* where (sql "1 = 1"))', "(attr)x", f"(attr {OWNER} other)"]
)
def test_attributes_in_an_unknown_shape_are_none(place: str) -> None:
    written = f"(event-type {WHO} {place.removesuffix('x')})"
    found = read_terms(parse_tag(parse(written.encode())), PLATES).attributes
    assert found == ({PLATE, TIME, PLACE} if place == "(attr)x" else frozenset())


@given(
    st.recursive(
        st.sampled_from([b"*", b"where", b"sql", b"is", b"set", b"attr", b"a = 1", b"x"]) | st.binary(max_size=4),
        lambda inner: st.lists(inner, max_size=4).map(tuple),
        max_leaves=12,
    )
)
@settings(deadline=None, max_examples=examples(300))
def test_reading_terms_raises_nothing_but_our_own_errors(place: object) -> None:
    places = [(b"*",), (b"*",), (b"*",)]
    for position in range(3):
        value = (b"event-type", *to_parts(), *places[:position], place)
        try:
            read_terms(parse_tag(value), PLATES)  # type: ignore[arg-type]  # hostile on purpose
        except PenstockError:
            continue


def to_parts() -> tuple[bytes, ...]:
    return str(OWNER).encode(), NAME.name.encode(), b"7", b"subscribe"


def test_attribute_ids() -> None:
    assert attribute_from_sexp(attribute_to_sexp(PLATE)) == PLATE
    for written in (
        "attr",
        "(attr)",
        "(attr a b)",
        "(attribute a b c)",
        f"(attr {OWNER} a b c)",
        f"(attr {OWNER} (a) b)",
    ):
        with refused("capability.malformed"):
            attribute_from_sexp(parse(written.encode()))


def flagged(granted: Tag, *, propagate: bool, forever: bool = False) -> set[str]:
    statement = Authorisation(OWNER, who(2), granted, propagate, ALWAYS if forever else CURRENT)
    return {flag.code for flag in flags(statement)}


def test_values_forced_on_a_domain_are_flagged() -> None:
    """Section 5.2.2: who may pass the right on is a domain, which enforces what it likes."""
    forced = event_tag(OWNER, forced={PLACE: "Victoria"})
    assert flagged(forced, propagate=True) == {"capability.forced-on-domain"}
    assert flagged(forced, propagate=False) == set()
    assert flagged(event_tag(OWNER, attributes=[PLACE]), propagate=True) == set()
    selector = event_tag(OWNER, where=[BoundSelector.of("location = 'V'", PLATES)])
    assert flagged(selector, propagate=True) == {"capability.forced-on-domain"}
    # Also where the right is one of several in one certificate.
    several = parse_tag((b"*", b"set", to_sexp(forced), (b"network",)))
    assert flagged(several, propagate=True) == {"capability.forced-on-domain"}


def test_root_authority_without_end_is_flagged() -> None:
    assert flagged(ANY, propagate=True, forever=True) == {"capability.no-expiry"}
    assert flagged(ANY, propagate=False, forever=True) == set()
    assert flags(NameCertificate(OWNER, b"n", name(1, "m"))) == ()


def test_descriptions_for_people() -> None:
    granted = event_tag(
        OWNER,
        "uk.*",
        None,
        [Right.SUBSCRIBE, Right.MANAGE_ADD],
        attributes=[PLATE],
        forced={PLACE: "V"},
        when=["hour > 3"],
    )
    described = describe_tag(granted)
    assert described["resource"] == "event-type"
    assert described["name"] == "uk.*"
    assert described["version"] == "*"
    assert set(described["rights"]) == {"subscribe", "manage-add"}  # type: ignore[call-overload]  # a list
    assert f"{NAME.name}#0" in described["attributes"]  # type: ignore[operator]  # a list
    assert described["where"] == [f"{NAME.name}#2 = 'V'"]
    assert described["when"] == ["hour > 3"]
    assert describe_tag(network_tag(OWNER)) == {"resource": "network", "owner": str(OWNER), "name": "*", "rights": "*"}
    assert describe_tag(ANY) == {"tag": "*"}
    for other in (NOTHING, tag('(foo [h]bar (* range numeric ge "1"))'), tag("(network (* set a (b c)))"), tag("x")):
        assert describe_tag(other)
