"""The linter: rules that are allowed and cannot be meant."""

from pathlib import Path

import pytest

from penstock.roles.language import parse_policy
from penstock.roles.lint import lint_policy

DECLARED = """role a; role b; role c(x: string); role d;
appointment one; appointment two; appointment per(x: string); appointment other(x: string);
fact level: integer; fact f(x: string);
"""
REACH = "activate a if appointment one;\nactivate b if appointment two;\nactivate c(x) if fact f(x);\n"
ALL = REACH + "activate d if role a;\n"


def findings(text: str) -> list[tuple[str, int]]:
    policy = parse_policy(DECLARED + text)
    return [(finding.code, policy.line(finding.at) - 3) for finding in lint_policy(policy)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ALL, []),
        # Mistakes come first, and alone.
        (REACH + "activate d if role nobody;", [("role.unknown", 4)]),
        (REACH, [("role.unreachable", -2)]),
        (REACH + "activate d if where hour > 20 AND level = 1, where hour < 8;",
         [("role.unreachable", -2), ("role.never", 4)]),
        (REACH + "activate d if fact f(x), where x = 'a' AND x = 'b';", [("role.unreachable", -2), ("role.never", 4)]),
        (REACH + "activate d if where hour = 24;", [("role.unreachable", -2), ("role.never", 4)]),
        (ALL + "allow a to subscribe self/x.Y if where level > 1 AND level < 1;", [("role.never", 5)]),
        (ALL + "predicate p(x: integer) is x > 1 AND x < 0;", [("role.never", 5)]),
        (REACH + "activate d if role d;", [("role.unreachable", -2), ("role.cycle", 4)]),
        (ALL + "activate a if role d;", [("role.cycle", 1)]),
        (REACH + "activate d if role c('z');", []),
        (ALL.replace("activate c(x) if fact f(x);", "activate c('y') if where level > 0;")
         + "activate b if role c('z');", []),
        (REACH.replace("activate c(x) if fact f(x);", "activate c('y') if where level > 0;")
         + "activate d if role c('z');", [("role.unreachable", -2)]),
        # Separations that rules cannot respect.
        (ALL + "separate dynamic a, d;", [("role.unreachable", -2), ("role.never", 4)]),
        (REACH + "activate d if appointment one, appointment two;\nseparate static one, two;",
         [("role.unreachable", -2), ("role.never", 4)]),
        (REACH + "activate d if appointment per(x), appointment other(x);\nseparate static per(p), other(p);",
         [("role.unreachable", -2), ("role.never", 4)]),
        (REACH + "activate d if appointment per(x), appointment other(y);\nseparate static per(p), other(p);", []),
        # Separations that rules defeat.
        (ALL + "separate static one, two;", []),
        (ALL + "separate static one, two;\nactivate a if where level > 3;", [("role.defeated", 6)]),
        (ALL + "separate static one, two;\nactivate a if appointment two;", []),
        (ALL + "separate dynamic a, b;\nallow a to publish self/x.Y;\nallow c(_) to publish self/x.*;",
         [("role.defeated", 7)]),
        (ALL + "separate dynamic a, b;\nallow a to publish self/x.Y;\nallow c(_) to subscribe self/x.*;", []),
        (REACH + "activate d if role a *;\nseparate dynamic a, b;\nallow a to publish self/x.Y;\n"
         "allow d to publish self/x.Y;", []),
        (ALL + "separate dynamic a, b;\nallow a to appoint one;\nallow d to appoint one;", [("role.defeated", 7)]),
    ],
)  # fmt: skip
def test_findings(text: str, expected: list[tuple[str, int]]) -> None:
    assert findings(text) == expected


def test_the_reason_is_as_short_as_possible() -> None:
    policy = parse_policy(
        DECLARED + REACH + "activate d if where level = 1 AND hour > 20, where weekday = 2 AND hour < 8;"
    )
    [finding] = [finding for finding in lint_policy(policy) if finding.code == "role.never"]
    assert finding.message.endswith("`hour > 20` and `hour < 8` can never be true together")


def test_the_examples_have_no_findings() -> None:
    for file in (Path(__file__).resolve().parents[2] / "examples" / "roles").rglob("*.roles"):
        assert lint_policy(parse_policy(file.read_text())) == [], file
