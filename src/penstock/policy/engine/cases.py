"""Test cases of policies: requests in YAML, and the expected decisions.

    policy: records.policy
    tests:
      - name: doctors read
        request: {subject: {role: doctor}, action: {urn:example:does: [read, write]}}
        decision: Permit
        obligations: [log]

Attributes are named as in the policy's text, or by their ids; then the value determines the type. Attributes that no
policy uses by that name and type are refused, unless the type is given: `{type: string, value: x}`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from penstock.codec.yaml_text import Plain, read_yaml
from penstock.errors import MalformedError, did_you_mean
from penstock.model.instants import parse_instant
from penstock.policy.engine.decide import SCOPE, Evaluator, decide
from penstock.policy.engine.lookup import PolicySources
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    STRING,
    URI,
    DataType,
    Value,
    data_type,
    read_value,
)
from penstock.policy.language.policies import Designator
from penstock.policy.language.requests import (
    ACTION,
    ACTION_ID,
    RESOURCE,
    RESOURCE_ID,
    SUBJECT,
    SUBJECT_ID,
    Attributes,
    Key,
    Request,
    RequestAttribute,
    attribute,
    key_of,
)
from penstock.policy.language.results import Result, XacmlDecision
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.text.tokens import CATEGORY

#: attributes that requests usually have, whether policies use them or not
_ALWAYS: Final = frozenset(
    key_of(category, name, of_type)
    for category, name in ((SUBJECT, SUBJECT_ID), (RESOURCE, RESOURCE_ID), (ACTION, ACTION_ID), (RESOURCE, SCOPE))
    for of_type in (STRING, URI)
)
_DECISIONS = sorted({one.plain for one in XacmlDecision})


@dataclass(frozen=True, slots=True)
class PolicyTestCase:
    """A request, and the expected result."""

    name: str
    request: Request
    decision: str
    #: ids; None if nothing is expected
    obligations: tuple[str, ...] | None = None
    advice: tuple[str, ...] | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """The known attributes: by their names in a text, and those that policies use."""

    names: Mapping[str, Designator]
    asked: frozenset[Key]

    def check_category(self, category: str, written: str) -> None:
        """Check that policies use a category. Raises `MalformedError` (`xacml.case`)."""
        if category not in CATEGORY.values() and all(one.category != category for one in self.asked):
            raise _unknown("category", written, CATEGORY)

    def check(self, category: str, name: str, types: Iterable[DataType]) -> None:
        """Check that policies use an attribute with these types. Raises `MalformedError` (`xacml.case`)."""
        wanted = {one.of for one in self.asked if (one.category, one.id) == (category, name)}
        if not wanted:
            declared = [own for own, one in self.names.items() if one.category == category]
            raise _unknown("attribute", name, [*declared, *(one.id for one in self.asked if one.category == category)])
        wrong = next((one for one in types if one not in wanted), None)
        if wrong is not None:
            meant = ", ".join(sorted(map(str, wanted)))
            hint = f"say its type: `{{type: {meant.partition(',')[0]}, value: …}}`"
            raise _malformed(f"policies use `{name[:80]}` as {meant}, but the value is a {wrong}", hint)


@dataclass(frozen=True, slots=True)
class Cases:
    """The file of a policy, of those that it refers to, and the cases as they are written."""

    policy: str
    refer: tuple[str, ...]
    tests: tuple[Mapping[str, Plain], ...] = field(repr=False)

    def read(self, names: Mapping[str, Designator], asked: Iterable[Designator]) -> Iterator[PolicyTestCase]:
        """Yield the cases; attributes are resolved by the policy's names, and must be used by policies.

        Raises `MalformedError` (`xacml.case`).
        """
        known = _Known(names, frozenset(one.key for one in asked) | _ALWAYS)
        for place, one in enumerate(self.tests, 1):
            yield _case(one, f"test {place}", known)


def read_cases(text: str, *, limits: PolicyLimits = POLICY_LIMITS) -> Cases:
    """Read test cases. Raises `MalformedError` (`yaml.*`, `xacml.case`), `LimitError`."""
    found = _mapping(read_yaml(text, limits=limits), "a file of test cases", ("policy", "refer", "tests"))
    tests = tuple(
        _mapping(one, "a test", ("name", "request", "decision", "obligations", "advice", "at"))
        for one in _list(found.get("tests"), "`tests`")
    )
    if not tests:
        raise _malformed("there are no tests")
    return Cases(_text(found.get("policy"), "`policy`"), _texts(found.get("refer", []), "`refer`"), tests)


def failures(case: PolicyTestCase, policy: Evaluator, now: datetime, sources: PolicySources | None = None) -> list[str]:
    """Return the differences from the expectations, in words."""
    response = decide(policy, case.request, now if case.at is None else case.at, sources)
    if len(response.results) != 1:
        return [f"the request asks for {len(response.results)} decisions"]
    return [*_different(case, response.results[0])]


def _different(case: PolicyTestCase, result: Result) -> Iterator[str]:
    if result.decision.plain != case.decision:
        reason = f" ({result.status.message})" if result.status.message else ""
        yield f"expected {case.decision}, and it is {result.decision.plain}{reason}"
    for word, wanted, told in (
        ("obligations", case.obligations, result.obligations),
        ("advice", case.advice, result.advice),
    ):
        found = [one.id for one in told]
        if wanted is not None and sorted(wanted) != sorted(found):
            yield f"expected {word} {', '.join(wanted) or 'none'}, and it is {', '.join(found) or 'none'}"


def _case(said: Mapping[str, Plain], name: str, known: _Known) -> PolicyTestCase:
    name = _text(said.get("name", name), "`name`")
    try:
        decision = _text(said.get("decision"), "`decision`")
        if decision not in _DECISIONS:
            raise _malformed(f"`decision` must be one of {', '.join(_DECISIONS)}")
        at = said.get("at")
        return PolicyTestCase(
            name,
            _request(said.get("request", {}), known),
            decision,
            _texts(said["obligations"], "`obligations`") if "obligations" in said else None,
            _texts(said["advice"], "`advice`") if "advice" in said else None,
            None if at is None else parse_instant(_text(at, "`at`")),
        )
    except MalformedError as error:
        error.message = f"{name}: {error.message}"
        raise


def _request(said: Plain, known: _Known) -> Request:
    categories = []
    for key, inside in _mapping(said, "`request`").items():
        category = CATEGORY.get(key, key)
        known.check_category(category, key)
        attributes = [_attribute(category, name, value, known) for name, value in _mapping(inside, f"`{key}`").items()]
        categories.append(Attributes(category, tuple(attributes)))
    return Request(tuple(categories))


def _attribute(category: str, name: str, said: Plain, known: _Known) -> RequestAttribute:
    declared = known.names.get(name)
    if declared is not None and declared.category != category:
        raise _malformed(f"`{name}` is not an attribute of this category")
    of_type, explicit = None if declared is None else declared.of, isinstance(said, dict)
    if isinstance(said, dict):
        typed = _mapping(said, f"`{name}`", ("type", "value"))
        of_type, said = data_type(_text(typed.get("type"), "`type`")), typed.get("value", [])
    values = said if isinstance(said, list) else [said]
    kinds = [_value(one, of_type, name) for one in values]
    if declared is None:
        if not explicit:
            known.check(category, name, [of for of, _ in kinds])
        return RequestAttribute(name, tuple(kinds))
    return attribute(declared.id, declared.of, *(value for _, value in kinds), issuer=declared.issuer)


def _value(said: Plain, of_type: DataType | None, name: str) -> tuple[DataType, Value]:
    found = {bool: BOOLEAN, int: INTEGER, float: DOUBLE, str: STRING}.get(type(said))
    if found is None:
        raise _malformed(f"a value of `{name}` must be a text, a number, true or false")
    if of_type is None or of_type is found:
        return found, said
    return of_type, read_value(found.write(said), of_type)


def _mapping(value: Plain, what: str, keys: tuple[str, ...] | None = None) -> Mapping[str, Plain]:
    if not isinstance(value, dict):
        raise _malformed(f"{what} must be a mapping")
    unknown = [key for key in value if keys is not None and key not in keys]
    if unknown:
        raise _malformed(f"{what} has no `{unknown[0][:80]}`", f"it has {', '.join(keys or ())}")
    return value


def _list(value: Plain, what: str) -> list[Plain]:
    if not isinstance(value, list):
        raise _malformed(f"{what} must be a list")
    return value


def _texts(value: Plain, what: str) -> tuple[str, ...]:
    return tuple(_text(one, what) for one in _list(value, what))


def _text(value: Plain, what: str) -> str:
    if not isinstance(value, str):
        raise _malformed(f"{what} must be a text")
    return value


def _unknown(what: str, written: str, known: Iterable[str]) -> MalformedError:
    anyway = "" if what == "category" else "To give it all the same, say its type: `{type: string, value: …}`."
    hint = " ".join(filter(None, (did_you_mean(written, known), anyway)))
    return _malformed(f"no policy uses {what} `{written[:80]}`", hint)


def _malformed(message: str, hint: str = "") -> MalformedError:
    return MalformedError("xacml.case", message, hint=hint)
