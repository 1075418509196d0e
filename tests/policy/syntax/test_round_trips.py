"""All that a policy can say is written in XML, as text and in JSON, and read back as it was."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import FIRST, NOW
from tests.policy.whole_policies import Whole

from penstock.apps.cli import conformance as conformance_xacml
from penstock.errors import MalformedError
from penstock.policy.language.policies import (
    ApplyEach,
    ApplyPath,
    ContentSelector,
    Designator,
    Policy,
    PolicyLiteral,
    PolicyReference,
    Reference,
    Root,
)
from penstock.policy.syntax.json.policies import read_json_policy, write_json_policy
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.policy.syntax.text.policy_writer import inner, lay_out, write_text
from penstock.policy.syntax.xml.policies import read_policy, write_policy

FORMS: dict[str, Callable[[Root], Root]] = {
    "xml": lambda root: read_policy(write_policy(root)),
    "text": lambda root: read_text_policy(write_text(root)),
    "json": lambda root: read_json_policy(write_json_policy(root)),
}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40))
@example(0)
def test_each_form_says_everything(seed: int) -> None:
    root = Whole(seed).root()
    text = write_text(root)
    assert lay_out(text) == text
    for name, again in FORMS.items():
        found = again(root)
        assert found == root, name
        # Prefixes and versions of paths count as well, and descriptions but for their spaces.
        assert _plain(write_text(found)) == _plain(text), name


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 1 << 40))
def test_one_form_becomes_another_and_back(seed: int) -> None:
    root = Whole(seed).root()
    found = root
    for name in ("xml", "json", "text", "json", "xml"):
        found = FORMS[name](found)
    assert found == root


def test_an_id_with_white_space_around_it_is_not_written_as_xml() -> None:
    # XML Schema takes the space away, and what is read back would be another policy.
    with pytest.raises(MalformedError) as caught:
        write_policy(Policy(" p", "1.0", FIRST, ()))
    assert caught.value.code == "xml.malformed"


def test_the_suite_passes_with_policies_that_went_through_all_forms(
    suites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(data: bytes) -> Root:
        return FORMS["xml"](FORMS["json"](FORMS["text"](read_policy(data))))

    monkeypatch.setattr(conformance_xacml, "read_policy", read)
    ran = [*conformance_xacml.run_suite(suites / "xacml-3.0", NOW)]
    assert [one for one in ran if one.differences] == []
    assert len(ran) > 200


def _plain(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.strip().startswith("description ")]


def test_policies_at_random_say_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        _look(Whole(seed).root(), seen)
    assert min(seen.values()) > 0
    wanted = [PolicyLiteral, Designator, ContentSelector, Reference, ApplyEach, ApplyPath, PolicyReference]
    assert {one.__name__ for one in wanted} <= {*seen}
    assert {"xpathExpression", "priorities", "tuple", "issuer", "ipAddress"} <= {*seen}


def _look(root: Root, seen: "Counter[str]") -> None:
    seen["priorities"] += "priorities" in root.combining
    seen["tuple"] += "tuple" in root.combining
    seen["issuer"] += root.issuer is not None
    if isinstance(root, Policy):
        said = [rule.condition for rule in root.rules if rule.condition is not None]
        for one in inner([*said, *root.variables.values()]):
            seen[type(one).__name__] += 1
            seen[str(one.of) if isinstance(one, Designator | ContentSelector) else str(one.gives)] += 1
        return
    for member in root.members:
        if isinstance(member, PolicyReference):
            seen["PolicyReference"] += 1
        else:
            _look(member, seen)
