"""Bundles: policies in all forms, entities, and what is none."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.apps.pdp_kit import ASKED, TODO
from tests.policy.kit import FUNCTION, NOW, XS, apply, policy_text, rule, value

from penstock.apps.http.bundles import build, load
from penstock.authority.decisions.questions import facts_of, read_question
from penstock.errors import MalformedError
from penstock.policy.language.policies import PolicyReference
from penstock.policy.language.requests import ENVIRONMENT
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.forms import read_root
from penstock.policy.syntax.json.policies import write_json_policy
from penstock.policy.syntax.text.policy_writer import write_text

YES = policy_text(rule())


def test_a_policy_that_asks_the_time_is_asked_each_time() -> None:
    clock = (
        f'<AttributeDesignator Category="{ENVIRONMENT}" MustBePresent="false" DataType="{XS}dateTime" '
        'AttributeId="urn:oasis:names:tc:xacml:1.0:environment:current-dateTime"/>'
    )
    size = apply(f"{FUNCTION}dateTime-bag-size", clock)
    timely = policy_text(rule(apply("integer-equal", size, value("1", "integer"))))
    assert not build({"root.xml": timely}).timeless
    assert not build({"root.xml": YES, "other.xml": timely.replace(b'"p"', b'"q"')}).timeless
    assert build({"root.xml": YES}).timeless


def test_bundles_of_all_forms(tmp_path: Path) -> None:
    """The todo scenario, each of its policies in another form, decides the same."""
    for name in ("root.xml", "entities.json"):
        shutil.copy(TODO / name, tmp_path)
    (tmp_path / "todos.json").write_bytes(write_json_policy(read_root((TODO / "todos.xml").read_bytes())))
    (tmp_path / "records.policy").write_text(write_text(read_root((TODO / "records.xml").read_bytes())))
    bundle, original = load(tmp_path), load(TODO)
    assert bundle.revision != original.revision
    questions: list[dict[str, Any]] = [ASKED, {**ASKED, "action": {"name": "fly"}}]
    for question in questions:
        facts = facts_of(read_question(question), original.entities)
        assert bundle.ask(facts, NOW) == original.ask(facts, NOW) == original.policy.ask(facts, NOW)
    root = read_root((TODO / "root.xml").read_bytes())
    others = {f"{name}.xml": (TODO / f"{name}.xml").read_bytes() for name in ("todos", "records")}
    for name, data in (("root.json", write_json_policy(root)), ("root.policy", write_text(root).encode())):
        assert build({name: data, **others}).revision
        assert build({name: data, **others, "more.xml": YES}).timeless


def test_of_a_text_the_first_policy_decides() -> None:
    first, second = (write_text(read_root(one)) for one in (policy_text(rule(), name="a"), policy_text(name="b")))
    bundle = build({"root.policy": f"{first}\n{second}".encode()})
    assert bundle.ask({}, NOW).decision is XacmlDecision.PERMIT
    assert bundle.sources.policy(PolicyReference("b", to_set=False)).id == "b"


def test_bundles_that_are_none() -> None:
    wrong: list[dict[str, bytes]] = [
        {},
        {"other.xml": YES},
        {"root.xml": YES, "root.policy": b"# none"},
        {"root.policy": b""},
    ]
    for files in wrong:
        with pytest.raises(MalformedError) as caught:
            build(files)
        assert caught.value.code == "pdp.bundle"


def test_policies_of_a_bundle_that_do_not_go_together_are_refused() -> None:
    root = (TODO / "root.xml").read_bytes()
    others = {f"{name}.xml": (TODO / f"{name}.xml").read_bytes() for name in ("todos", "records")}
    for files, code in (
        ({"root.xml": root}, "xacml.unknown"),
        ({"root.xml": root, **others, "again.xml": others["todos.xml"]}, "xacml.duplicate"),
        ({"root.xml": YES, "other.xml": policy_text(rule(effect="Deny"))}, "xacml.duplicate"),
    ):
        with pytest.raises(MalformedError) as caught:
            build(files)
        assert caught.value.code == code


TWICE = b'{"subjects":[{"type":"user","id":"a","properties":{"a":{"b":1},"a.b":2}}]}'


def test_entities_that_are_none() -> None:
    for text in (
        b"[]",
        b'{"users":[]}',
        b'{"subjects":{}}',
        b'{"subjects":[{"id":"a"}]}',
        b'{"actions":[{"name":1}]}',
        TWICE,
    ):
        with pytest.raises(MalformedError, match=r"entities\.json") as caught:
            build({"root.xml": YES, "entities.json": text})
        assert caught.value.code == "pdp.entities"
