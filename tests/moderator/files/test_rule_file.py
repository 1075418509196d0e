"""Rule bases in files: what may stand where, what is said of what may not, and that what is written is read back."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import who

from penstock.codec.yaml_text import read_yaml, write_yaml
from penstock.errors import MalformedError, PenstockError
from penstock.model.names import TypeKey
from penstock.model.tree import TreeScope
from penstock.model.values import Enumerated, Kind
from penstock.moderator.descriptions import parse_function
from penstock.moderator.files.rule_file import RuleFile, principal_of, read_rule_file, write_rule_file
from penstock.moderator.rules.rules import Mode, PublishRule, Rule
from penstock.moderator.rules.steps import Strategy
from penstock.moderator.settlement.addition import Tightening
from penstock.selector import ALWAYS, Selector, parse

BASE = f"""\
title: Machines
scope: upward
mode: scoped
principals: {{maker: "{who(7)}"}}
owner: maker
types:
  Line:
  Line.Press: Line
  other/Weather: Line
publishers:
  attributes: {{country: [de, fr]}}
  profiles: {{acme: {{country: de}}}}
subscribers:
  attributes:
    role: [engineer, worker]
    age: {{min: 0, max: 120}}
    weight: {{min: 0, max: 9.5}}
    hired: timestamp
    night: boolean
    shift: {{kind: integer, values: [1, 2, 3]}}
    left: {{kind: timestamp, min: 2020-01-01, max: 2030-01-01}}
  profiles:
    Ada: {{role: engineer, age: 41, weight: 3, hired: 2019-04-01, shift: 2}}
customs: {{resolve: follow, heuristic: oldest, speakers: [acme, maker, Ada], tightening: poll}}
rules:
  - {{id: r1, event: Line, by: acme, fnc_s: {{role: engineer, age: {{min: 18, max: 65}}}}}}
  - {{id: r2, event: Line.Press, by: acme, publishers: [acme, maker], fnc_s: "age > 18 OR night"}}
  - {{id: r3, event: other/Weather, by: maker, fnc_p: "{{(country, de)}}", fnc_s: {{hired: {{min: 2020-01-01}}}},
     from: 2026-01-01, until: 2026-12-31T12:00:00Z}}
  - {{id: r4, event: Line, by: acme, fnc_s: {{weight: {{max: 3}}, night: true}}}}
  - {{id: r5, event: Line, by: acme, fnc_s: "weight <= 3"}}
subscriptions:
  - {{id: s1, event: Line, by: Ada, fnc_p: {{country: de}}}}
  - {{id: s2, event: Line, by: acme, subscriber: Ada}}
"""


def read(text: str = BASE) -> RuleFile:
    return read_rule_file(read_yaml(text))


def test_everything_is_read() -> None:
    rules = read()
    maker, acme, ada = who(7), principal_of("acme"), principal_of("Ada")
    line, weather = TypeKey(maker, "Line"), TypeKey(principal_of("other"), "Weather")
    assert (rules.title, rules.mode, rules.vocabulary.tree.scope) == ("Machines", Mode.SCOPED, TreeScope.UPWARD)
    assert rules.vocabulary.tree.parents[weather] == line
    assert rules.customs.resolve is Strategy.FOLLOW
    assert rules.customs.heuristic.name == "oldest"
    assert rules.customs.speakers == {acme, maker, ada}
    assert rules.customs.tightening is Tightening.POLL
    adults = parse("age <= 65 AND age >= 18 AND role = 'engineer'")
    assert rules.rules[0] == PublishRule("r1", line, (acme,), acme, ALWAYS, adults)
    assert rules.rules[1].publishers == (acme, maker)
    assert rules.rules[2].fnc_p == parse("country = 'de'")
    assert rules.rules[2].validity.ends == datetime(2026, 12, 31, 12, tzinfo=UTC)
    assert rules.rules[3].fnc_s == parse("night = TRUE AND weight <= 3.0")
    assert [wish.subscriber for wish in rules.subscriptions] == [ada, ada]
    assert rules.subscriptions[1].stated_by == acme
    assert rules.subscribers[ada].values["weight"] == 3.0
    assert rules.subscribers[ada].values["hired"] == datetime(2019, 4, 1, tzinfo=UTC)
    assert rules.vocabulary.subscribers.attributes["shift"].domain == Enumerated(frozenset({1, 2, 3}))
    assert rules.vocabulary.subscribers.attributes["left"].kind is Kind.TIMESTAMP
    assert rules.names[maker] == "maker"
    assert rules.lines["r3"] == 28
    assert rules.profiles[ada].values == rules.subscribers[ada].values
    stated: list[Rule] = [*rules.rules, *rules.subscriptions]
    for rule in stated:
        rules.vocabulary.check(rule)


def test_names_that_the_reader_knows() -> None:
    text = BASE.replace("owner: maker\n", "owner: me\n")
    assert read_rule_file(read_yaml(text), {"me": who(9)}).owner == who(9)
    with pytest.raises(MalformedError) as raised:
        read_rule_file(read_yaml(BASE), {"maker": who(9)})
    assert raised.value.code == "principal.ambiguous"
    assert raised.value.message.startswith("line 4: ")


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("title: Machines", "titel: Machines", "moderator.file", 1),
        ("scope: upward\n", "", "moderator.file", 1),
        ("scope: upward", "scope: up", "moderator.file", 2),
        ("mode: scoped", "mode: none", "moderator.file", 3),
        (f'"{who(7)}"', "ed25519:x", "principal.malformed", 4),
        ("owner: maker", "owner: ''", "principal.malformed", 5),
        ("Line.Press: Line", "Line.Press: Lane", "tree.parent", 8),
        ("Line.Press: Line", "Line.Press: Line.Press", "type.cycle", 6),
        ("Line.Press: Line", "Line Press: Line", "name.malformed", 8),
        ("Line.Press: Line", "Line.Press: [Line]", "moderator.file", 8),
        ("Line.Press: Line", "maker/Line: ", "moderator.file", 8),
        ("country: [de, fr]", "country: []", "value.domain", 11),
        ("acme: {country: de}", "acme: {country: uk}", "value.domain", 12),
        ("age: {min: 0, max: 120}", "age: {min: 9, max: 2}", "value.domain", 16),
        ("age: {min: 0, max: 120}", "age: {least: 9}", "moderator.file", 16),
        ("Ada: {role: engineer, age: 41", "Ada: {role: engineer, age: old", "value.kind", 23),
        ("Ada: {role: engineer, age: 41", "Ada: {role: engineer, size: 41", "profile.unknown-attribute", 23),
        ("Ada: {role: engineer, age: 41", "Ada: {role: [engineer], age: 41", "value.kind", 23),
        ("heuristic: oldest", "heuristic: luck", "moderator.file", 24),
        ("{role: engineer, age: {min: 18, max: 65}}", "{}", "moderator.empty-list", 26),
        ("{role: engineer, age: {min: 18, max: 65}}", "{age: {least: 18}}", "moderator.file", 26),
        ("{role: engineer, age: {min: 18, max: 65}}", "{age: [18]}", "moderator.file", 26),
        ("{role: engineer, age: {min: 18, max: 65}}", "{age: {min: }}", "moderator.file", 26),
        ("{role: engineer, age: {min: 18, max: 65}}", "7", "moderator.file", 26),
        ("id: r1, ", "", "moderator.file", 26),
        ("id: r1", "id: /", "moderator.rule", 26),
        ("id: r1", "id: r1, colour: red", "moderator.file", 26),
        ("age > 18 OR night", "age > > 18", "selector.syntax", 27),
        ("publishers: [acme, maker]", "publishers: [acme, acme]", "moderator.rule", 27),
        ("publishers: [acme, maker]", "publishers: [acme, 1]", "moderator.file", 27),
        ("{(country, de)}", "{(country)}", "moderator.list", 28),
        ("from: 2026-01-01", "from: monday", "date.malformed", 29),
        ("from: 2026-01-01", "from: 2027-01-01", "validity.empty", 29),
        ("id: r5", "id: r4", "moderator.duplicate-id", 31),
        ("id: s2", "id: r4", "moderator.duplicate-id", 34),
        ("rules:\n", "rules: [", "yaml.malformed", 0),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, code: str, line: int) -> None:
    assert old in BASE
    with pytest.raises(PenstockError) as raised:
        read(BASE.replace(old, new, 1))
    assert (raised.value.code, raised.value.message) == (code, raised.value.message)
    if line:
        assert raised.value.message.startswith(f"line {line}: "), raised.value.message


def test_a_slip_of_the_pen_is_recognised() -> None:
    with pytest.raises(MalformedError) as raised:
        read(BASE.replace("subscriptions:", "subscription:"))
    assert "did you mean `subscriptions` or `subscribers`?" in raised.value.message


def test_who_publishes_and_subscribes_is_one() -> None:
    text = BASE.replace("role: [engineer, worker]", "role: [engineer, worker]\n    country: [de, fr]")
    with pytest.raises(MalformedError) as raised:
        read(text.replace("    Ada: {", "    acme: {country: fr}\n    Ada: {"))
    assert raised.value.code == "moderator.file"
    rules = read(text.replace("    Ada: {", "    acme: {country: de, age: 30}\n    Ada: {"))
    assert rules.profiles[principal_of("acme")].values == {"country": "de", "age": 30}


def test_what_is_written_is_read_back() -> None:
    rules = read()
    again = read(write_yaml(write_rule_file(rules)))
    assert again == replace(rules, names=again.names)
    assert {name for who, name in rules.names.items()} == {*again.names.values()}


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("{(role, engineer)}", "role = 'engineer'"),
        (" { (age, min, 18),(age,max, 65.5) } ", "age <= 65.5 AND age >= 18"),
        ("{(night, true), (badge, 'a, (b)')}", "badge = 'a, (b)' AND night = TRUE"),
    ],
)
def test_lists_as_the_paper_writes_them(text: str, condition: str) -> None:
    assert parse_function(text) == parse(condition)


functions = st.sampled_from(
    [
        ALWAYS,
        *map(
            parse,
            (
                "age >= 18",
                "age BETWEEN 18 AND 30",
                "age = 18 AND age <= 20",
                "18 <= age",
                "role = 'engineer' AND age >= 18 AND age <= 65",
                "weight <= 3",
                "weight <= 3.5",
                "night",
                "NOT night",
                "hired >= TIMESTAMP '2020-01-01 00:00:00'",
                "role = 'engineer' OR night",
                "role <> 'engineer'",
            ),
        ),
    ]
)


@given(st.lists(st.tuples(functions, st.booleans(), st.booleans()), max_size=4))
@settings(max_examples=examples(40), deadline=None)
def test_rules_are_written_so_that_they_are_read_back(stated: list[tuple[Selector, bool, bool]]) -> None:
    rules = read()
    made = [
        replace(
            rules.rules[2 if dated else 0],
            id=f"n{number}",
            fnc_s=function,
            stated_by=who(7) if mine else principal_of("acme"),
        )
        for number, (function, dated, mine) in enumerate(stated)
    ]
    rules = replace(rules, rules=tuple(made))
    again = read(write_yaml(write_rule_file(rules)))
    assert again.rules == rules.rules


@given(
    st.integers(0, len(BASE) - 1),
    st.integers(0, 12),
    st.text("{}[]:-,'\"# \nrab19.", max_size=4) | st.sampled_from(["null", "true", "[]", "{}", "id", "P", "\0", "é"]),
)
@settings(max_examples=examples(150), deadline=None)
def test_any_file_is_read_or_refused(start: int, length: int, instead: str) -> None:
    text = BASE[:start] + instead + BASE[start + length :]
    try:
        rules = read(text)
    except MalformedError:
        return
    assert read(write_yaml(write_rule_file(rules))).rules == rules.rules


@pytest.mark.parametrize("written", ["fnc_s: ", "fnc_s: null", "fnc_p: ~", "publishers: []", "fnc_s: []"])
def test_what_is_written_and_says_nothing_is_told(written: str) -> None:
    text = BASE.replace("id: r5, event: Line, by: acme", f"id: r5, event: Line, by: acme, {written}")
    with pytest.raises(MalformedError) as caught:
        read_rule_file(read_yaml(text.replace(', fnc_s: "weight <= 3"', "")))
    assert caught.value.code == "moderator.file"


def test_a_day_at_the_end_belongs_to_a_period() -> None:
    found = read_rule_file(read_yaml(BASE.replace("until: 2026-12-31T12:00:00Z", "until: 2026-12-31")))
    assert found.rules[2].validity.not_after == b"2026-12-31_23:59:59"
