"""Rule bases written down, so that `rule_file` reads them as what they were."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby

from penstock.codec.yaml_text import Written
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import Profile, ProfileSchema
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Schema, Value
from penstock.moderator.adding import Customs, Tightening
from penstock.moderator.conflicts import Function
from penstock.moderator.heuristics import NEWEST
from penstock.moderator.lists import AttributeList, Bound, Entry
from penstock.moderator.rule_file import OWNER, RuleFile, principal_of
from penstock.moderator.rules import PublishRule, Rule
from penstock.selector import ALWAYS, Selector
from penstock.trust.validity import Validity


def write_rule_file(rules: RuleFile) -> dict[str, Written]:
    """Return a rule base as plain data, for `write_yaml`."""
    return _Writer(rules).rule_base()


class _Writer:
    """Writes one rule base; principals by their names, as far as each name is of one of them."""

    def __init__(self, rules: RuleFile) -> None:
        self._rules = rules
        called = [name for who, name in rules.names.items() if name != who.short]
        self._names = {who: name for who, name in rules.names.items() if name != who.short and called.count(name) == 1}

    def rule_base(self) -> dict[str, Written]:
        rules = self._rules
        tree = rules.vocabulary.tree
        parts: dict[str, Written] = {
            "title": rules.title,
            "scope": tree.scope.value,
            "mode": rules.mode.value,
            "principals": self._principals(),
            "owner": "" if rules.owner == principal_of(OWNER) else self._who(rules.owner),
            "types": {
                self._event(event): None if parent is None else self._event(parent)
                for event, parent in tree.parents.items()
            },
            "publishers": self._people(rules.vocabulary.publishers, rules.publishers),
            "subscribers": self._people(rules.vocabulary.subscribers, rules.subscribers),
            "customs": self._customs(rules.customs),
            "rules": self._stated(rules.rules),
            "subscriptions": self._stated(rules.subscriptions),
        }
        return {key: value for key, value in parts.items() if value}

    def _principals(self) -> dict[str, Written]:
        """Return who is meant by names that do not stand for themselves."""
        return {name: str(who) for who, name in self._names.items() if who != principal_of(name)}

    def _who(self, principal: Principal) -> str:
        return self._names.get(principal, str(principal))

    def _event(self, event: TypeKey) -> str:
        return event.name if event.owner == self._rules.owner else f"{self._who(event.owner)}/{event.name}"

    def _people(self, schema: ProfileSchema, profiles: Mapping[Principal, Profile]) -> dict[str, Written]:
        parts: dict[str, Written] = {
            "attributes": {name: _spec(spec) for name, spec in schema.attributes.items()},
            "profiles": {
                self._who(who): {name: _value(value) for name, value in profile.values.items() if value is not None}
                for who, profile in profiles.items()
            },
        }
        return {key: value for key, value in parts.items() if value}

    def _customs(self, customs: Customs) -> dict[str, Written]:
        written: dict[str, Written] = {} if customs.resolve is None else {"resolve": customs.resolve.value}
        if customs.heuristic != NEWEST:
            written["heuristic"] = customs.heuristic.name
        if customs.speakers:
            written["speakers"] = [self._who(each) for each in sorted(customs.speakers)]
        if customs.tightening is not Tightening.FREE:
            written["tightening"] = customs.tightening.value
        return written

    def _stated(self, rules: Iterable[Rule]) -> list[Written]:
        return [self._rule(rule) for rule in rules]

    def _rule(self, rule: Rule) -> dict[str, Written]:
        by = self._who(rule.stated_by)
        written: dict[str, Written] = {"id": rule.id, "event": self._event(rule.event), "by": by}
        if isinstance(rule, PublishRule):
            if rule.publishers != (rule.stated_by,):
                written["publishers"] = [self._who(publisher) for publisher in rule.publishers]
            written |= self._function(Function.P, rule.fnc_p) | self._function(Function.S, rule.fnc_s)
        else:
            if rule.subscriber != rule.stated_by:
                written["subscriber"] = self._who(rule.subscriber)
            written |= self._function(Function.P, rule.fnc_p)
        return {**written, **_period(rule.validity)}

    def _function(self, function: Function, selector: Selector) -> dict[str, Written]:
        schema = self._rules.vocabulary.profiles(function).attributes
        return {} if selector == ALWAYS else {function.value: _selector(selector, schema)}


def _spec(spec: AttributeSpec) -> Written:
    match spec.domain:
        case Enumerated(values):
            listed = sorted(map(_value, values), key=str)
            return listed if spec.kind is Kind.STRING else {"kind": spec.kind.value, "values": listed}
        case Ranged(low, high) if spec.kind is Kind.TIMESTAMP:
            return {"kind": spec.kind.value, "min": _value(low), "max": _value(high)}
        case Ranged(low, high):
            return {"min": _value(low), "max": _value(high)}
    return spec.kind.value


def _selector(selector: Selector, schema: Schema) -> Written:
    """Return attributes and their values where they are read as the same function, else the condition."""
    listed = AttributeList.from_selector(selector)
    if listed is None or listed.selector != selector or not all(_is_plain(entry, schema) for entry in listed.entries):
        return selector.text
    written: dict[str, Written] = {}
    bounds: dict[str, Written]
    for name, entries in groupby(listed.entries, key=lambda entry: entry.name):
        bounds = {entry.bound.value: _value(entry.value) for entry in entries}
        if Bound.IS in bounds and len(bounds) > 1:
            # One value, and a bound besides: a mapping has no place for both.
            return selector.text
        written[name] = bounds.get(Bound.IS, bounds)
    return written


def _is_plain(entry: Entry, schema: Schema) -> bool:
    """Say whether YAML has values of that kind, and this one is read as what it is."""
    spec = schema.get(entry.name)
    made = spec is not None and spec.kind is Kind.FLOAT and not isinstance(entry.value, float)
    return not made and not isinstance(entry.value, datetime)


def _value(value: Value) -> str | int | float | bool:
    return _instant(value) if isinstance(value, datetime) else value


def _instant(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _period(validity: Validity) -> dict[str, Written]:
    ends = (("from", validity.starts), ("until", validity.ends))
    return {key: _instant(end) for key, end in ends if end is not None}
