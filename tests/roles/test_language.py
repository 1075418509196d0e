"""The role language: what it accepts, what it refuses and where, and how it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LimitError, MalformedError
from penstock.roles.language import (
    ActivationRule,
    AuthorisationRule,
    CredentialCondition,
    CredentialKind,
    EventPrivilege,
    FactCondition,
    RoleConstant,
    RoleVariable,
    WhereCondition,
    format_policy,
    parse_policy,
    policy_problems,
    read_policy,
)
from penstock.roles.limits import POLICY_LENGTH
from penstock.trust.capabilities import Right

DECLARED = """domain court;
role tracker(plate: string);
role clerk;
appointment court_order(case: string, plate: string) by court;
appointment badge(number: integer);
fact case_assignment(who: principal, case: string);
fact level: integer;
predicate fast(speed: integer, most: integer) is speed > most;
"""


def test_an_activation_rule() -> None:
    policy = read_policy(
        DECLARED
        + """activate tracker(p) if appointment court_order(c, p) by court *,
        fact case_assignment(principal, c) *, where hour * 2 >= 16 AND level > 1 *, role clerk;"""
    )
    [rule] = policy.activations()
    assert rule == ActivationRule(
        "tracker",
        (RoleVariable("p"),),
        (
            CredentialCondition(
                CredentialKind.APPOINTMENT, "court_order", (RoleVariable("c"), RoleVariable("p")), "court", member=True
            ),
            FactCondition("case_assignment", (RoleVariable("principal"), RoleVariable("c")), member=True),
            WhereCondition(rule.conditions[2].selector, member=True),  # type: ignore[union-attr]
            CredentialCondition(CredentialKind.ROLE, "clerk"),
        ),
    )
    assert rule.conditions[2].selector.text == "hour * 2 >= 16 AND level > 1"  # type: ignore[union-attr]


def test_a_predicate_that_brokers_evaluate() -> None:
    source = "role r(x: string);\n\npredicate top(name: string, most: integer);\npredicate late();\n\n"
    rule = "allow r(x) to publish self/t.A matching top(x, 3) matching late();\n"
    policy = read_policy(source + rule)
    assert [one.body for one in policy.predicates().values()] == [None, None]
    assert read_policy(format_policy(policy)) == policy
    assert "predicate top(name: string, most: integer);" in format_policy(policy)
    for wrong, code in (("top(x)", "role.arity"), ("top(3, 3)", "role.kind"), ("top(y, 3)", "role.unbound")):
        found = policy_problems(parse_policy(source + f"allow r(x) to publish self/t.A matching {wrong};"))
        assert [one.code for one in found] == [code]


def test_an_authorisation_rule() -> None:
    policy = read_policy(
        DECLARED
        + """allow tracker(p) to subscribe below self/uk.Numberplate(location, "exact-time", plate = p)
        where .speed > 30 AND .plate = p matching fast(.speed, 50) if where hour < 20;"""
    )
    [rule] = policy.authorisations()
    assert isinstance(rule, AuthorisationRule)
    privilege = rule.privilege
    assert isinstance(privilege, EventPrivilege)
    assert privilege.right is Right.SUBSCRIBE
    assert (privilege.owner, privilege.types, privilege.below) == ("self", "uk.Numberplate", True)
    assert privilege.attributes == ("location", "exact-time", "plate")
    assert privilege.forced == (("plate", RoleVariable("p")),)
    assert privilege.where is not None
    assert privilege.where.attributes == {"event.speed", "event.plate", "p"}
    assert privilege.matching[0].arguments[1] == RoleConstant(50)
    assert len(rule.conditions) == 1


def test_the_formatter_keeps_comments_and_is_stable() -> None:
    text = """# the police
domain court ;   # who signs orders
role   tracker( plate:string ) ;
appointment court_order(case: string, plate: string) by court;
# before the rule
activate tracker(p) if # inside
   appointment court_order(_,p) by court*, where hour>=8 # about the hour
   ;
allow tracker(p) to subscribe self/uk.N(*, plate=p) where ."exact-time" <> 'a#b' ;
# the end
"""
    written = format_policy(read_policy(text))
    assert (
        written
        == """# the police
# who signs orders
domain court;

role tracker(plate: string);

appointment court_order(case: string, plate: string) by court;

# before the rule
# inside
# about the hour
activate tracker(p)
    if appointment court_order(_, p) by court *,
       where hour >= 8;

allow tracker(p) to subscribe self/uk.N(*, plate = p) where ."exact-time" <> 'a#b';

# the end
"""
    )
    assert format_policy(read_policy(written)) == written


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("role a", "role.syntax", 1, 7),
        ("roles a;", "role.syntax", 1, 1),
        ("role a(x string);", "role.syntax", 1, 10),
        ("role a(x: text);", "role.syntax", 1, 11),
        ("role a;\n  activate a if maybe b;", "role.syntax", 2, 17),
        ("role a;\nactivate a if where hour >> 8;", "selector.syntax", 2, 27),
        ("role a;\nallow a to subscribe self/x.Y where .s > 1 AND .t >> 8;", "selector.syntax", 2, 52),
        ("role a;\nactivate a if where .hour = 8;", "role.syntax", 2, 21),
        ("role a;\nactivate b;", "role.unknown", 2, 1),
        ("role a;\nactivate a if role b;", "role.unknown", 2, 15),
        ("role a;\nactivate a if fact f(principal);", "role.unknown", 2, 15),
        ("role a; role b(x: string);\nactivate a if role b;", "role.arity", 2, 15),
        ("role a(x: string); role b(x: integer);\nactivate a(x) if role b(x);", "role.kind", 2, 25),
        ("role a(x: string);\nactivate a(1) ;", "role.kind", 2, 12),
        ("role a(x: string);\nactivate a(x);", "role.unbound", 2, 12),
        ("role a(x: string);\nactivate a(_);", "role.unbound", 2, 12),
        ("role a;\nactivate a if where x = 1;", "role.unbound", 2, 15),
        ("role a;\nactivate a if where hour = 'x';", "selector.type", 2, 15),
        ("role a;\nrole a;", "role.duplicate", 2, 1),
        ("role a(x: string, x: string);", "role.duplicate", 1, 1),
        ("role a(hour: string);", "role.reserved", 1, 1),
        ("role a by nowhere;", "role.unknown", 1, 1),
        ("role a(x: integer); fact n: integer;\nactivate a(n) if where n > 1;", "role.reserved", 2, 12),
        ("role a(x: integer);\nactivate a(hour) if where hour > 1;", "role.reserved", 2, 12),
        ("role a;\nallow a to fly self/x.Y;", "role.syntax", 2, 12),
        ("role a;\nallow a to subscribe self/x y;", "role.syntax", 2, 29),
        ("role a;\nallow a to subscribe self/x..y;", "role.reference", 2, 12),
        ("role a;\nallow a to subscribe self/x.Y where speed > 1;", "role.unbound", 2, 12),
        ("role a;\nallow a to subscribe self/x.Y matching fast(.s);", "role.unknown", 2, 40),
        ("role a;\nallow a to subscribe self/x.Y(s, s);", "role.duplicate", 2, 12),
        ("role a;\nallow a to appoint order;", "role.unknown", 2, 12),
        ("role a; role b;\nallow a to subscribe self/x.Y if role b;", "role.condition", 2, 34),
        (
            "role a; fact f(x: principal);\nallow a to subscribe self/x.Y if fact f(principal) *;",
            "role.condition",
            2,
            34,
        ),
        ("role a;\nseparate dynamic a;", "role.separation", 2, 1),
        ("role a;\nlimit a to 0;", "role.cardinality", 2, 1),
        ("role a;\nlimit a to many;", "role.syntax", 2, 12),
        ("domain self;", "role.reserved", 1, 1),
        ("domain a = ed25519:abc;", "role.syntax", 1, 12),
    ],
)
def test_mistakes_are_reported_where_they_are(text: str, code: str, line: int, column: int) -> None:
    with pytest.raises(MalformedError) as caught:
        read_policy(text)
    assert (caught.value.code, caught.value.fields["line"], caught.value.fields["column"]) == (code, line, column)


def test_all_mistakes_are_found() -> None:
    policy = parse_policy("role a;\nactivate b;\nactivate a if role c, fact f(x);\nlimit a to 0;")
    assert [problem.code for problem in policy_problems(policy)] == [
        "role.unknown",
        "role.unknown",
        "role.unknown",
        "role.cardinality",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "role a;" * (POLICY_LENGTH // 7 + 1),
        "#" * 10_000_000,
        "role a; activate a if " + ", ".join(["role a"] * 40) + ";",
        "role a(" + ", ".join(f"x{i}: string" for i in range(40)) + ");",
        "role a; activate a if where " + "(" * 5_000 + "1 = 1" + ")" * 5_000 + ";",
        "role a; activate a if where " + " OR ".join(["hour = 1"] * 9_000) + ";",
    ],
)
def test_what_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(LimitError) as caught:
        read_policy(text)
    assert caught.value.code in ("role.limit", "selector.limit")


WORDS = """role appointment fact activate allow separate limit domain predicate if where to by is matching static
dynamic subscribe publish connect appoint below self/x.Y ( ) , ; * = : . _ # ' " a b x principal string integer 'v' 12
-1.5 TRUE TIMESTAMP hour AND OR >"""
_words = st.sampled_from([*WORDS.split(), "\n"])


@given(st.one_of(st.text(max_size=200), st.lists(_words, max_size=40).map(" ".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        policy = read_policy(text)
    except MalformedError:
        return
    assert read_policy(format_policy(policy)) == policy
