"""Selectors: the compiled function against a hand-written lambda, and set algebra against the solver."""

from collections.abc import Callable, Mapping

from harness import Result, at_least, microseconds, seconds
from penstock.model.values import AttributeSpec, Kind, Scalar, Schema
from penstock.selector import compile_selector, covers, parse
from penstock.selector.algebra import RowQuestion
from penstock.selector.analysis import ask_solver
from penstock.selector.limits import SELECTOR_LIMITS

SCHEMA: Schema = {
    "price": AttributeSpec(Kind.FLOAT),
    "volume": AttributeSpec(Kind.INTEGER),
    "stock": AttributeSpec(Kind.STRING),
    "halted": AttributeSpec(Kind.BOOLEAN),
}
ROWS: list[dict[str, Scalar]] = [
    {"price": 20.0 + step % 9, "volume": step * 10, "stock": stock, "halted": step % 5 == 0}
    for step, stock in enumerate(["NOK", "ERIC", "SAAB", "VOLV", "NOK", "HM", "ERIC", "ABB", "NOK", "SEB"])
]
ROWS.append({"price": None, "volume": 5, "stock": "NOK", "halted": None})

STOCKS = frozenset(["NOK", "ERIC"])
#: text, and the same by hand: TRUE or not, null-safe
CASES: list[tuple[str, Callable[[Mapping[str, Scalar]], object]]] = [
    (
        "price > 24 AND stock IN ('NOK', 'ERIC')",
        lambda row: (
            (price := row.get("price")) is not None
            and price > 24  # type: ignore[operator]  # a row has the kinds of the schema
            and row.get("stock") in STOCKS
        ),
    ),
    (
        "stock = 'NOK'",
        lambda row: row.get("stock") == "NOK",
    ),
    (
        "volume BETWEEN 20 AND 80 AND NOT halted",
        lambda row: (
            (volume := row.get("volume")) is not None
            and 20 <= volume <= 80  # type: ignore[operator]  # a row has the kinds of the schema
            and row.get("halted") is False
        ),
    ),
    (
        "stock LIKE 'E%' OR price * 2 >= 50",
        lambda row: (
            ((stock := row.get("stock")) is not None and stock.startswith("E"))  # type: ignore[union-attr]  # a row has the kinds of the schema
            or ((price := row.get("price")) is not None and price * 2 >= 50)  # type: ignore[operator]  # a row has the kinds of the schema
        ),
    ),
]

CONJUNCTIONS = [
    ("price > 20", "price > 24 AND stock IN ('NOK', 'ERIC')"),
    ("price > 24 AND stock = 'NOK'", "price > 20 AND volume < 10"),
    ("volume BETWEEN 0 AND 100 AND NOT halted", "volume IN (1, 2, 3) AND halted = FALSE AND price IS NOT NULL"),
]


def run() -> list[Result]:
    return [evaluation(), conjunctions()]


def evaluation() -> Result:
    worst = float("inf")
    details = []
    for text, by_hand in CASES:
        compiled = compile_selector(parse(text), SCHEMA)
        assert all((compiled(row) is True) == bool(by_hand(row)) for row in ROWS)

        def ours(compiled: Callable[[Mapping[str, Scalar]], object] = compiled) -> None:
            for row in ROWS:
                compiled(row)

        def theirs(by_hand: Callable[[Mapping[str, Scalar]], object] = by_hand) -> None:
            for row in ROWS:
                by_hand(row)

        mine, other = seconds(ours, theirs, repeat=2_000)
        worst = min(worst, other / mine)
        details.append(f"{other / mine:.2f} ({microseconds(mine / len(ROWS))}) {text}")
    return at_least("selector-evaluation", worst, 0.5, "; ".join(details))


def conjunctions() -> Result:
    questions = [(parse(a), parse(b)) for a, b in CONJUNCTIONS]

    def algebra() -> None:
        for a, b in questions:
            assert covers(a, b, SCHEMA).by == "algebra"

    def solver() -> None:
        for a, b in questions:
            assert ask_solver(RowQuestion(SCHEMA, (b,), (a,)), SELECTOR_LIMITS).settled

    fast, slow = seconds(algebra, solver, repeat=5)
    detail = f"algebra {microseconds(fast / len(questions))}, solver {microseconds(slow / len(questions))} a question"
    return at_least("covers-conjunctions", slow / fast, 20, detail)
