"""What the tests of the moderator share: the workflow of the paper's Figure 2, people, and rules in one line."""

from collections.abc import Iterable

from tests.trust.kit import who

from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import ProfileSchema, alphabetic, numeric
from penstock.model.tree import TreeScope, TypeTree
from penstock.model.values import AttributeSpec, Kind, Value
from penstock.moderator.rules.rules import AttributeList, Bound, ListEntry, PublishRule
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import ALWAYS, Selector, parse

OWNER = who(1)
P1, P2, P3, P4 = (who(number) for number in (11, 12, 13, 14))
MAKERS = ProfileSchema({"company": alphabetic("A", "B", "C"), "licensed": AttributeSpec(Kind.BOOLEAN)})
PEOPLE = ProfileSchema(
    {
        "role": alphabetic("engineer", "worker", "manager"),
        "company": alphabetic("A", "B"),
        "machine": alphabetic("M", "N"),
        "age": numeric(0, 120),
        "badge": AttributeSpec(Kind.STRING),
    }
)


def event(name: str) -> TypeKey:
    return TypeKey(OWNER, name)


def tree(parents: dict[str, str | None], scope: TreeScope = TreeScope.UPWARD) -> TypeTree:
    return TypeTree.of(
        {event(name): None if parent is None else event(parent) for name, parent in parents.items()}, scope
    )


def words(parents: TypeTree) -> Vocabulary:
    return Vocabulary(parents, MAKERS, PEOPLE)


#: Figure 2: ActivityX, below it A1 to A3, below these A10 to A18
WORKFLOW = tree(
    {"ActivityX": None}
    | {f"A{n}": "ActivityX" for n in (1, 2, 3)}
    | {f"A{n}": f"A{(n - 10) // 3 + 1}" for n in range(10, 19)}
)


def listing(*entries: tuple[str, Value] | tuple[str, Bound, Value]) -> Selector:
    """Write a list as the paper does: `("role", "engineer")`, `("age", Bound.MAX, 18)`."""
    return AttributeList(
        tuple(ListEntry(e[0], e[1]) if len(e) == 2 else ListEntry(e[0], e[2], e[1]) for e in entries)
    ).selector


def rule(
    id_: str,
    about: str | TypeKey,
    fnc_s: Selector | str = ALWAYS,
    fnc_p: Selector | str = ALWAYS,
    *,
    of: Iterable[Principal] = (P1,),
) -> PublishRule:
    publishers = tuple(of)
    return PublishRule(
        id_,
        event(about) if isinstance(about, str) else about,
        publishers,
        publishers[0],
        parse(fnc_p) if isinstance(fnc_p, str) else fnc_p,
        parse(fnc_s) if isinstance(fnc_s, str) else fnc_s,
    )


LISTS: tuple[Selector, ...] = (
    ALWAYS,
    listing(("role", "engineer")),
    listing(("role", "worker")),
    listing(("company", "A")),
    listing(("role", "engineer"), ("company", "A")),
    listing(("role", "engineer"), ("company", "A"), ("age", Bound.MIN, 18)),
    listing(("age", Bound.MIN, 18)),
    listing(("age", Bound.MIN, 0)),
    listing(("age", Bound.MIN, 18), ("age", Bound.MAX, 65)),
    listing(("age", Bound.MIN, 18), ("role", "engineer")),
)
#: all but the last need no solver
FORMULAS: tuple[Selector, ...] = (
    *LISTS[:6],
    parse("role IN ('engineer', 'worker')"),
    parse("role = 'engineer' OR company = 'A'"),
    parse("(role = 'engineer' OR company = 'A') AND age >= 18"),
    parse("(company = 'A' OR role = 'engineer') AND age >= 21"),
    parse("NOT (role = 'manager' OR age < 18)"),
    parse("badge IS NULL"),
    parse("badge LIKE '%x' AND role = 'engineer'"),
)
