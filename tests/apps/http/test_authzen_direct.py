"""Usual questions are answered quickly, and just as all are answered: with decisions, records and refusals alike."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.apps.pdp_kit import ASKED, EVALUATION
from tests.budget import examples
from tests.policy.kit import policy_text, rule

from penstock.apps.http.bundles import Bundle, build
from penstock.apps.http.decisions import Deciding
from penstock.apps.http.journal import Decided
from penstock.apps.http.limits import ServiceLimits
from penstock.apps.http.server import HttpRequest
from penstock.apps.http.service import DecisionService, ServiceSettings
from penstock.errors import MalformedError
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT
from penstock.policy.syntax.json.requests import read_json

NOW = datetime(2026, 5, 1, tzinfo=UTC)
XS = "http://www.w3.org/2001/XMLSchema#"
NAMES = ("a", "b", "a.b", "urn:penstock:authzen:subject-type")


def has(category: str, name: str, of_type: str, text: str, *, must: bool = False) -> str:
    """Return a target: an attribute has a value."""
    word = "true" if must else "false"
    return (
        f'<Target><AnyOf><AllOf><Match MatchId="urn:oasis:names:tc:xacml:1.0:function:{of_type}-equal">'
        f'<AttributeValue DataType="{XS}{of_type}">{text}</AttributeValue><AttributeDesignator Category="{category}" '
        f'AttributeId="{name}" DataType="{XS}{of_type}" MustBePresent="{word}"/></Match></AllOf></AnyOf></Target>'
    )


TARGETS = [
    has(SUBJECT, "a", "string", "x"),
    has(SUBJECT, "a", "integer", "1"),
    has(SUBJECT, "a.b", "string", "x"),
    has(RESOURCE, "a", "boolean", "true"),
    has(RESOURCE, "b", "double", "1.5"),
    has(ACTION, "b", "string", "x"),
    has(ENVIRONMENT, "a", "string", "x"),
    has(ENVIRONMENT, "b", "string", "y"),
    has(SUBJECT, "urn:penstock:authzen:subject-type", "string", "robot"),
]
DUTY = '<ObligationExpressions><ObligationExpression ObligationId="log" FulfillOn="Permit"/></ObligationExpressions>'


def bundle(combining: str, *more: str, entities: bool = True, trust_properties: bool = False) -> Bundle:
    """Return one whose rules look at all that questions of the test may say, and give an obligation now and then."""
    rules = [
        rule(target=target, effect="Deny" if place % 3 == 1 else "Permit", name=f"r{place}", more=DUTY * (place == 4))
        for place, target in enumerate(TARGETS)
    ]
    known: dict[str, Any] = {
        "subjects": [
            {"type": "user", "id": "known", "properties": {"a": "x", "b": ["x", 1, {}]}},
            {"type": "user", "id": "other", "properties": {"a": "y"}},
            {"type": "user", "id": "nested", "properties": {"a": {"b": "x"}}},
            {"type": "user", "id": "dotted", "properties": {"a.b": 1}},
        ],
        "resources": [{"type": "user", "id": "known", "properties": {"a": True, "b": None}}],
        "actions": [{"name": "read", "properties": {"b": "x"}}, {"name": "write"}],
    }
    files = {"root.xml": policy_text(*rules, *more, combining=f"urn:oasis:names:tc:xacml:{combining}")}
    whole = {**files, "entities.json": json.dumps(known).encode()} if entities else files
    return build(whole, trust_properties=trust_properties)


BUNDLES = [
    bundle("3.0:rule-combining-algorithm:deny-overrides"),
    bundle("3.0:rule-combining-algorithm:deny-unless-permit"),
    bundle("1.0:rule-combining-algorithm:first-applicable", entities=False),
    bundle(
        "3.0:rule-combining-algorithm:permit-unless-deny",
        rule(target=has(ENVIRONMENT, "b", "string", "x", must=True), effect="Deny"),
    ),
    bundle("3.0:rule-combining-algorithm:deny-unless-permit", trust_properties=True),
]
TRUSTING = BUNDLES[-1]
ALONE = bundle("3.0:rule-combining-algorithm:deny-unless-permit", entities=False)
TEXTS = st.sampled_from(["x", "y", "user", "known", "read", "write", "ü\u2028"])
PLAIN = TEXTS | st.sampled_from([0, 1, 1.5, 10**30, True, False, None]) | st.lists(TEXTS, max_size=2)
ODD_TEXTS = TEXTS | st.sampled_from(["nested", "dotted", "robot", "", 'a"b'])
NUMBERS = st.sampled_from([1.0, -0.0, 1e3, -(2**63) - 1, 1e-400])
ODD = PLAIN | ODD_TEXTS | NUMBERS | st.lists(PLAIN, max_size=2) | st.sampled_from([{"b": "x"}, {}])


def questions(names: tuple[str, ...], texts: Any, values: Any, more: dict[str, Any]) -> Any:
    properties = st.none() | st.dictionaries(st.sampled_from(names), values, max_size=3)
    entities = st.fixed_dictionaries({"type": texts, "id": texts}, optional={"properties": properties, **more})
    actions = st.fixed_dictionaries({"name": texts}, optional={"properties": properties})
    parts = {"subject": entities, "action": actions, "resource": entities}
    return st.fixed_dictionaries(parts, optional={"context": properties, **more})


QUESTIONS = questions(NAMES[:3], TEXTS, PLAIN, {}) | questions(NAMES, ODD_TEXTS, ODD, {"more": st.just("x")})


def told(which: Bundle, body: bytes) -> tuple[dict[str, Any], list[Decided]] | None:
    """Return what is answered and recorded of a question the long way; nothing where it is refused."""
    deciding = Deciding(which, NOW, ServiceLimits(), lambda: 0.0)
    try:
        found = read_json(body)
        assert isinstance(found, dict)
        return deciding.evaluation(found), deciding.decided
    except MalformedError:
        return None


def quickly(which: Bundle, body: bytes) -> bool:
    """Say whether there is a quick answer; where there is, it is the long one."""
    assert which.answer is not None
    found = which.answer(body, NOW)
    if found is None:
        return False
    service = DecisionService(which, ServiceSettings("https://pdp.example.com"))
    said = service.answer(HttpRequest(b"POST", EVALUATION.encode(), {b"content-type": b"application/json"}, body))
    decision, question = found
    subject, resource = question.subject, question.resource
    about = (subject.type, subject.id), question.action.name, (resource.type, resource.id)
    assert (json.loads(said.body), [Decided(decision, *about)]) == told(which, body)
    return True


@settings(max_examples=examples(150), deadline=None)
@given(question=QUESTIONS, which=st.sampled_from(BUNDLES), dumped=st.sampled_from([(",", ":"), (", ", ": ")]))
def test_a_quick_answer_is_the_long_one(question: dict[str, Any], which: Bundle, dumped: tuple[str, str]) -> None:
    for escaped in (True, False):
        quickly(which, json.dumps(question, separators=dumped, ensure_ascii=escaped).encode())


USUAL = b'{"subject":{"type":"user","id":"known"},"action":{"name":"read"},"resource":{"type":"t","id":"i"}}'


@settings(max_examples=examples(150), deadline=None)
@given(
    place=st.integers(0, len(USUAL)), cut=st.integers(0, 3), put=st.sampled_from([b"", *b'",:{}x \\\xff']) | st.binary()
)
@example(place=8, cut=0, put=0)
def test_what_is_spoiled_is_never_answered_otherwise(place: int, cut: int, put: bytes | int) -> None:
    with_it = put if isinstance(put, bytes) else bytes([put])
    quickly(BUNDLES[0], USUAL[:place] + with_it + USUAL[place + cut :])


@pytest.mark.parametrize(
    "body",
    [
        USUAL.replace(b'"id":"i"', b'"id":"i","id":"j"'),
        USUAL.replace(b'"id":"i"', b'"id":"i","properties":{"n":1,"n":2}'),
        USUAL.replace(b'"id":"i"', b'"id":"i","properties":{},"properties":{}'),
        USUAL.replace(b'"id":"i"', b'"id":""'),
        USUAL.replace(b'"id":"i"', b'"id":"i","properties":{"urn:penstock:authzen:subject-type":"robot"}'),
        USUAL.replace(b'"id":"i"', b'"id":"i","properties":{"x":{"y":1}}'),
        USUAL.replace(b'"id":"i"', b'"id":"\\u0069"'),
        USUAL.replace(b"}}", b'},"subject":{"type":"user","id":"x"}}'),
        b"[" + USUAL + b"]",
        USUAL + b"x",
        b"\xef\xbb\xbf" + USUAL,
    ],
)
def test_what_is_unusual_takes_the_long_way(body: bytes) -> None:
    assert not quickly(BUNDLES[1], body)


def dumped_twice(value: Any, where: list[str], space: str) -> str:
    """Return JSON in which one member is there twice; `where` leads to its object, and ends with its name."""
    if not isinstance(value, dict):
        return json.dumps(value)
    members = [(key, dumped_twice(one, where[1:] if where[:1] == [key] else [], space)) for key, one in value.items()]
    if len(where) == 1:
        members.append((where[0], json.dumps(value[where[0]])))
    return "{" + ("," + space).join(f"{json.dumps(key)}:{space}{text}" for key, text in members) + "}"


@settings(max_examples=examples(100), deadline=None)
@given(
    data=st.data(), question=questions(NAMES[:3], TEXTS, PLAIN | NUMBERS, {}), space=st.sampled_from(["", " ", "\t "])
)
def test_a_member_that_is_there_twice_is_never_read(data: st.DataObject, question: dict[str, Any], space: str) -> None:
    where, inside = [], question
    while True:
        where.append(data.draw(st.sampled_from(sorted(inside))))
        inside = inside[where[-1]]
        if not isinstance(inside, dict) or not inside or data.draw(st.booleans()):
            break
    assert json.loads(dumped_twice(question, [], space)) == question
    body = dumped_twice(question, where, space).encode()
    assert told(ALONE, body) is None
    assert not quickly(ALONE, body)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"context": {"b": "x"}},
        {"context": None},
        {"subject": {"type": "user", "id": "known"}},
        {"subject": {"type": "user", "id": "other"}},
        {"subject": {"type": "user", "id": "nested"}},
        {"subject": {"type": "user", "id": "other", "properties": {"a": "x"}}},
        {"subject": {"type": "user", "id": "stranger", "properties": {"a": "x"}}},
        {"subject": {"type": "robot", "id": "known", "properties": {}}},
        {"resource": {"type": "user", "id": "known"}},
        {"resource": {"type": "user", "id": "known", "properties": {"a": "x"}}},
        {"resource": {"type": "user", "id": "known", "properties": None}},
        {"resource": {"type": "t", "id": "i", "properties": {"n": 1.5, "l": ["x"], "t": "u", "z": None, "a": True}}},
        {"action": {"name": "write", "properties": {"b": "x"}}},
        {"action": {"name": "read", "properties": {"b": ["z"]}}},
    ],
)
def test_usual_questions_are_quick(more: dict[str, Any]) -> None:
    question = {**ASKED, "action": {"name": "write"}, **more}
    for which in (BUNDLES[1], ALONE, BUNDLES[1]):
        assert quickly(which, json.dumps(question).encode())


def test_what_is_known_of_one_is_not_told_of_another() -> None:
    for who in ("known", "other", "known", "stranger", "other"):
        question = {**ASKED, "action": {"name": "write"}, "subject": {"type": "user", "id": who}}
        assert quickly(BUNDLES[1], json.dumps(question).encode())


def test_what_is_known_goes_before_what_a_question_says() -> None:
    """Of `known` the bundle says that `a` is `x`, of `other` that it is `y`, and of others nothing at all."""
    for who, permitted in (("known", True), ("other", False), ("stranger", False)):
        for value in ("x", "z", 2, None, [], ["z", "x"], True):
            subject = {"type": "user", "id": who, "properties": {"a": value}}
            body = json.dumps({**ASKED, "action": {"name": "write"}, "subject": subject}).encode()
            assert quickly(BUNDLES[1], body)
            answer = told(BUNDLES[1], body)
            assert answer is not None
            assert answer[0]["decision"] is permitted, subject


@pytest.mark.parametrize(
    ("category", "of_type", "name", "found"),
    [
        (SUBJECT, "robot", "r", {"a": "q", "a.b": "q", "n": "q"}),
        (SUBJECT, "user", "stranger", {"n": "q"}),
        (SUBJECT, "user", "other", {"a": "y", "n": "q"}),
        (SUBJECT, "user", "nested", {"a.b": "x", "n": "q"}),
        (RESOURCE, "user", "stranger", {"a": "q", "a.b": "q", "n": "q"}),
        (RESOURCE, "user", "known", {"a": True, "b": None, "a.b": "q", "n": "q"}),
        (ACTION, "", "read", {"a": "q", "a.b": "q", "b": "x", "n": "q"}),
    ],
)
def test_what_is_known_of_no_entity_of_a_type_is_taken_from_a_question(
    category: str, of_type: str, name: str, found: dict[str, Any]
) -> None:
    said = {"a": "q", "a.b": "q", "n": "q"}
    assert BUNDLES[1].entities.properties(category, of_type, name, said) == found


def test_a_question_is_believed_before_the_bundle_where_that_is_said() -> None:
    said = USUAL.replace(b'"id":"known"', b'"id":"known","properties":{"a":%b}')
    for value, permitted in (
        (b'"x"', True),
        (b'"z"', False),
        (b"2", False),
        (b"null", False),
        (b"[]", False),
        (b'["z","x"]', True),
    ):
        body = said % value
        assert quickly(TRUSTING, body.replace(b'"read"', b'"write"'))
        answer = told(TRUSTING, body.replace(b'"read"', b'"write"'))
        assert answer is not None
        assert answer[0]["decision"] is permitted
