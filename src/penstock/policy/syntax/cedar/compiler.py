"""Compile Cedar policies to one XACML policy that decides the same.

| Cedar | XACML |
|---|---|
| `permit`, `forbid` | a rule with that effect; all rules are combined by deny-overrides |
| nothing permits or forbids | NotApplicable, so that it can be combined with other policies; alone, it is a refusal |
| `principal`, `resource`, `action` | the subject's and the resource's type and id, and the action's id, as in AuthZEN |
| `principal.rank`, `context.ip` | the attribute of that name in the subject or the environment |
| `principal.address.city` | the attribute `address.city` |
| a set | a bag: a set of one value is that value, and an empty set is an absent attribute |
| an entity as a value | a string, `User::"alice"`, with the id as it is |
| `principal in Group::"staff"` | the entity itself, or one of the subject's `urn:penstock:cedar:ancestors` |

Cedar skips a policy whose evaluation errs; in XACML, an error is Indeterminate and refuses access. So that both decide
the same, a policy that can err is refused (`cedar.can-err`): one that uses an attribute without `has` before it, or
calculates. An attribute has one kind in all policies of a text, which its uses say (`cedar.type` if they differ). If a
request gives it a value of another kind, the decision is Indeterminate or the same as Cedar's, except within a bag. If
nothing says the kind, as in `principal.ward == resource.ward`, it is that of the values.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from penstock.errors import LimitError, MalformedError
from penstock.policy.combining import RULE_COMBINING
from penstock.policy.language.datatypes import BOOLEAN, INTEGER, STRING, DataType
from penstock.policy.language.functions import V1, V2, V3
from penstock.policy.language.policies import Designator, Policy, PolicyLiteral
from penstock.policy.language.requests import (
    ACTION,
    ACTION_ID,
    ENVIRONMENT,
    RESOURCE,
    RESOURCE_ID,
    RESOURCE_TYPE,
    SUBJECT,
    SUBJECT_ID,
    SUBJECT_TYPE,
)
from penstock.policy.limits import CEDAR_ATTRIBUTES, POLICY_LIMITS, POLICY_PATTERN, PolicyLimits
from penstock.policy.syntax.builder import (
    ApplyNode,
    Builder,
    DefinitionNode,
    MatchNode,
    PolicyNode,
    RuleNode,
    TargetNode,
    Term,
    VariableNode,
)
from penstock.policy.syntax.cedar import grammar
from penstock.policy.syntax.cedar.grammar import (
    CedarCall,
    CedarConditional,
    CedarEntity,
    CedarExpression,
    CedarHas,
    CedarIs,
    CedarJunction,
    CedarLike,
    CedarLiteral,
    CedarNot,
    CedarPath,
    CedarPolicy,
    CedarRelation,
    CedarScope,
    CedarSet,
    parse_cedar,
)
from penstock.policy.syntax.text.tokens import TextPlace, problem

#: the entities that a subject, a resource or an action is in, all of them, as `Group::"staff"`
ANCESTORS: Final = "urn:penstock:cedar:ancestors"
_CATEGORIES: Final = {
    grammar.PRINCIPAL: SUBJECT,
    grammar.RESOURCE: RESOURCE,
    grammar.ACTION: ACTION,
    grammar.CONTEXT: ENVIRONMENT,
}
_IDS: Final = {grammar.PRINCIPAL: SUBJECT_ID, grammar.RESOURCE: RESOURCE_ID, grammar.ACTION: ACTION_ID}
_TYPES: Final = {grammar.PRINCIPAL: SUBJECT_TYPE, grammar.RESOURCE: RESOURCE_TYPE}
_RESERVED: Final = frozenset({SUBJECT_ID, RESOURCE_ID, ACTION_ID, SUBJECT_TYPE, RESOURCE_TYPE, ANCESTORS})
_ORDER: Final = {
    "<": "integer-less-than",
    "<=": "integer-less-than-or-equal",
    ">": "integer-greater-than",
    ">=": "integer-greater-than-or-equal",
}
_ACTION_TYPE: Final = "Action"
#: characters that mean something in patterns of XML Schema
_SPECIAL: Final = frozenset(".\\?*+{}()[]|^$-")


def compile_cedar(text: str, *, limits: PolicyLimits = POLICY_LIMITS) -> Policy:
    """Compile the policies of a text to one XACML policy, whose id is made from the text.

    Raises `PolicyTextError` with line and column (`cedar.*`), `LimitError` (`xacml.limit`).

    >>> policy = compile_cedar('permit (principal, action == Action::"read", resource);')
    >>> policy.id, [rule.id for rule in policy.rules]
    ('cedar-481168931d91ff50', ['policy0'])
    """
    policies = parse_cedar(text, limits=limits)
    if not policies:
        raise MalformedError("cedar.syntax", "there is no policy", hint="begin with `permit` or `forbid`")
    checked = _Checker(text)
    for one in policies:
        checked.check(one)
    checked.finish()
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    node = _Writer(text, checked).policy(policies, f"cedar-{digest[:16]}")
    found = Builder(limits).root(node)
    assert isinstance(found, Policy)  # noqa: S101  # the node has no members
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Kinds of attributes, and whether a policy can err.


@dataclass(slots=True, eq=False)
class _Kind:
    """The kind of a value: Bool, Long, String, Entity, Set of a kind, or not known yet."""

    name: str | None = None
    element: "_Kind | None" = None
    #: the same as another
    same: "_Kind | None" = None
    #: not a set, because it is in one
    single: bool = False

    def found(self) -> "_Kind":
        kind = self
        while kind.same is not None:
            kind = kind.same
        return kind

    def __str__(self) -> str:
        one = self.found()
        return f"Set of {one.element}" if one.element is not None else one.name or "unknown"

    @property
    def types(self) -> tuple[DataType, ...]:
        """The data types of the values in a bag of this kind."""
        one = self.found()
        if one.element is not None:
            return one.element.types
        return (STRING, INTEGER, BOOLEAN) if one.name is None else (_DATA[one.name],)


_BOOL, _LONG, _STRING, _ENTITY = (_Kind(name) for name in ("Bool", "Long", "String", "Entity"))
_SET: Final = "Set"
_DATA: Final = {"Bool": BOOLEAN, "Long": INTEGER, "String": STRING, "Entity": STRING}
_Guards = frozenset[tuple[str, tuple[str, ...]]]
"""Attributes that are present: the variable, and the names below it."""
_NONE: Final[_Guards] = frozenset()


class _Checker:
    """Finds the kind of each attribute, and refuses policies that can err."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._kinds: dict[tuple[str, tuple[str, ...]], _Kind] = {}
        #: where each attribute is used first
        self._places: dict[tuple[str, tuple[str, ...]], int] = {}
        #: all attributes
        self._known: set[tuple[str, tuple[str, ...]]] = set()
        #: attributes that have members
        self.records: set[tuple[str, tuple[str, ...]]] = set()
        self.action_type: str | None = None

    def refuse(self, code: str, message: str, at: int, hint: str = "") -> NoReturn:
        raise problem(code, message, self._text, at, hint)

    def check(self, policy: CedarPolicy) -> None:
        """Check a policy: its conditions are evaluated one after the other, up to the first that is false."""
        for variable, scope in policy.scopes:
            for entity in scope.entities or ():
                if variable == grammar.ACTION:
                    self._action(entity)
        guards = _NONE
        for condition in policy.conditions:
            guards |= self._truth(condition, guards)[0]

    def finish(self) -> None:
        """Refuse attributes that are both values and records."""
        for path in self.records:
            if path in self._places:
                name = ".".join((path[0], *path[1]))
                hint = "only members of records are attributes: write `has` and `==` for each member"
                self.refuse("cedar.type", f"`{name}` is used as a value, and has members", self._places[path], hint)

    def _action(self, entity: CedarEntity) -> None:
        """Refuse actions of different types: a request has only the action's name."""
        known = self.action_type or entity.type
        if entity.type.rpartition("::")[2] != _ACTION_TYPE or entity.type != known:
            wanted = f"`{known}`" if self.action_type else "`Action`, or `Action` in a namespace"
            self.refuse(
                "cedar.type", f"an action's type must be {wanted}", entity.at, "a request has only the action's name"
            )
        self.action_type = known

    def kind(self, expression: CedarExpression) -> _Kind:
        """Return the kind of an expression that was checked."""
        match expression:
            case CedarLiteral(_, value):
                return _BOOL if isinstance(value, bool) else _LONG if isinstance(value, int) else _STRING
            case CedarEntity():
                return _ENTITY
            case CedarPath(_, _, ()):
                return _ENTITY
            case CedarPath(_, variable, names):
                return self._kinds.setdefault((variable, names), _Kind())
            case CedarSet(_, values):
                return self._set_of(self.kind(values[0]) if values else _Kind(), expression.at)
        return _BOOL

    def _set_of(self, element: _Kind, at: int) -> _Kind:
        if element.found().element is not None:
            self.refuse("cedar.construct", "sets of sets are not compiled", at, "a bag holds single values")
        element.found().single = True
        return _Kind(_SET, element)

    def _same(self, one: _Kind, other: _Kind, at: int) -> None:
        one, other = one.found(), other.found()
        if one is other:
            return
        if one.name is None or other.name is None:
            unknown, known = (one, other) if one.name is None else (other, one)
            if unknown.single and known.element is not None:
                self.refuse("cedar.construct", "sets of sets are not compiled", at, "a bag holds single values")
            known.single |= unknown.single
            unknown.same = known
        elif one.element is not None and other.element is not None:
            self._same(one.element, other.element, at)
        elif one.name != other.name:
            hint = "an attribute has one kind in all policies of a text"
            self.refuse("cedar.type", f"expected {one}, found {other}", at, hint)

    def _is(self, kind: _Kind, expression: CedarExpression, guards: _Guards) -> None:
        self._value(expression, guards)
        self._same(kind, self.kind(expression), expression.at)

    def _truth(self, expression: CedarExpression, guards: _Guards) -> tuple[_Guards, _Guards]:
        """Check a boolean, and return the attributes that are present if it is true, and if it is false."""
        match expression:
            case CedarHas(_, of, path):
                if of.names:
                    self._present(of, guards)
                self._path(path, used=False)
                places = range(len(of.names) + 1, len(path.names) + 1)
                return frozenset((path.variable, path.names[:place]) for place in places), _NONE
            case CedarNot(_, of):
                true, false = self._truth(of, guards)
                return false, true
            case CedarJunction(_, sign, operands):
                return self._junction(sign == "&&", operands, guards)
            case CedarConditional(_, test, then, otherwise):
                true, false = self._truth(test, guards)
                one, other = self._truth(then, guards | true), self._truth(otherwise, guards | false)
                return (true | one[0]) & (false | other[0]), (true | one[1]) & (false | other[1])
        self._is(_BOOL, expression, guards)
        return _NONE, _NONE

    def _junction(
        self,
        both: bool,
        operands: Sequence[CedarExpression],
        guards: _Guards,  # `&&`, or `||`
    ) -> tuple[_Guards, _Guards]:
        #: what is present if the operands so far go on to the next, and if one of them has decided
        on, decided = _NONE, None
        for operand in operands:
            true, false = self._truth(operand, guards | on)
            goes_on, ends = (true, false) if both else (false, true)
            decided = on | ends if decided is None else decided & (on | ends)
            on |= goes_on
        decided = decided or _NONE
        return (on, decided) if both else (decided, on)

    def _value(self, expression: CedarExpression, guards: _Guards) -> None:
        """Check an expression of any kind."""
        match expression:
            case CedarPath(at, variable, names):
                if variable == grammar.CONTEXT and not names:
                    self.refuse("cedar.construct", "`context` is not a value", at, "compare its members one by one")
                if names:
                    self._present(expression, guards)
                    self._path(expression, used=True)
            case CedarLike(_, of):
                self._is(_STRING, of, guards)
            case CedarIs(_, of):
                self._is(_ENTITY, of, guards)
            case CedarRelation(at, sign, left, right):
                self._relation(at, sign, (left, right), guards)
            case CedarSet(_, values):
                for value in values:
                    self._is(self.kind(values[0]), value, guards)
            case CedarCall(at, of, method, argument):
                element = _Kind()
                self._is(self._set_of(element, at), of, guards)
                if argument is not None:
                    self._is(element if method == "contains" else self._set_of(element, at), argument, guards)
            case CedarConditional(at, _, then, otherwise):
                if any(self.kind(one).found().name not in (None, _BOOL.name) for one in (then, otherwise)):
                    hint = "write `if a then x == 1 else x == 2`, not `x == (if a then 1 else 2)`"
                    self.refuse("cedar.construct", "`if` gives a value that is not a boolean", at, hint)
                self._truth(expression, guards)
            case CedarHas() | CedarNot() | CedarJunction():
                self._truth(expression, guards)
            case CedarLiteral() | CedarEntity():
                pass

    def _relation(self, at: int, sign: str, sides: tuple[CedarExpression, CedarExpression], guards: _Guards) -> None:
        left, right = sides
        if sign in _ORDER:
            for one in sides:
                self._is(_LONG, one, guards)
        elif sign == "in":
            if not isinstance(left, CedarPath) or left.names:
                hint = "only `principal`, `action` and `resource` have ancestors in a request"
                self.refuse("cedar.construct", "the ancestors of this entity are not in the request", at, hint)
            self._is(_ENTITY, left, guards)
            self._value(right, guards)
            kind = self.kind(right).found()
            # An attribute of which nothing else is known can be one entity or a set of them.
            if kind.name is not None:
                self._same(_Kind(_SET, _ENTITY) if kind.element is not None else _ENTITY, kind, right.at)
        else:
            for one in sides:
                self._value(one, guards)
            self._same(self.kind(left), self.kind(right), at)
        if grammar.ACTION in [one.variable for one in sides if isinstance(one, CedarPath) and not one.names]:
            for one in sides:
                for entity in one.values if isinstance(one, CedarSet) else (one,):
                    if isinstance(entity, CedarEntity):
                        self._action(entity)

    def _present(self, path: CedarPath, guards: _Guards) -> None:
        if (path.variable, path.names) not in guards:
            hint = f"write `{path.variable} has {'.'.join(path.names)} && …` before"
            self.refuse("cedar.can-err", f"`{path}` can be absent, and Cedar then skips the policy", path.at, hint)

    def _path(self, path: CedarPath, *, used: bool) -> None:
        """Record an attribute, and the records that it is in."""
        name = ".".join(path.names)
        if name in _RESERVED:
            self.refuse("cedar.construct", f"no attribute can be called `{name}`", path.at)
        self._known.add((path.variable, path.names))
        if len(self._known) > CEDAR_ATTRIBUTES:
            raise LimitError("xacml.limit", f"the policies use more than {CEDAR_ATTRIBUTES} attributes")
        for place in range(1, len(path.names)):
            self.records.add((path.variable, path.names[:place]))
        if used:
            self._places.setdefault((path.variable, path.names), path.at)


# ----------------------------------------------------------------------------------------------------------------------
# Nodes of XACML.


@dataclass(slots=True)
class _Writer:
    """Turns checked policies into nodes."""

    text: str
    checked: _Checker
    #: variables of the XACML policy: which attributes are present, and the tests of `if`
    variables: dict[str, DefinitionNode] = field(default_factory=dict)

    def policy(self, policies: Sequence[CedarPolicy], name: str) -> PolicyNode:
        """Return the node of the XACML policy."""
        rules: dict[str, RuleNode] = {}
        for number, one in enumerate(policies):
            rule = self._rule(one, f"policy{number}")
            if rule.id in rules:
                self.checked.refuse("cedar.syntax", f"two policies have the id `{rule.id[:80]}`", one.at)
            rules[rule.id] = rule
        return PolicyNode(
            TextPlace(self.text, 0),
            name,
            "1.0",
            RULE_COMBINING["deny-overrides"],
            rules=tuple(rules.values()),
            definitions=tuple(self.variables.values()),
        )

    def _rule(self, policy: CedarPolicy, default: str) -> RuleNode:
        annotations = dict(policy.annotations)
        name = annotations.pop("id", default)
        if not name or name != " ".join(name.split()):
            self.checked.refuse("cedar.construct", f"`{name[:80]}` cannot be the id of a rule in XACML", policy.at)
        target = tuple(
            clause for variable, scope in policy.scopes for clause in self._scope(variable, scope, policy.at)
        )
        place = TextPlace(self.text, policy.at)
        terms = self._conjuncts(policy.conditions)
        condition = None if not terms else (place, self._joined("and", terms, policy.at))
        description = "; ".join(f"{key}: {text}" if text else key for key, text in annotations.items())
        return RuleNode(place, name, policy.effect, target, condition, description=description)

    # --- targets ----------------------------------------------------------------------------------------------------

    def _scope(self, variable: str, scope: CedarScope, at: int) -> TargetNode:
        clauses: list[tuple[tuple[MatchNode, ...], ...]] = []
        if scope.type is not None:
            clauses.append(((self._match(scope.type, self._type(variable), at),),))
        if scope.entities == ():
            self.checked.refuse("cedar.construct", "nothing is `in` an empty list", at, "leave this policy out")
        if scope.entities is not None:
            clauses.append(tuple(one for entity in scope.entities for one in self._entity(variable, entity, scope)))
        return tuple(clauses)

    def _entity(self, variable: str, entity: CedarEntity, scope: CedarScope) -> Iterator[tuple[MatchNode, ...]]:
        named = self._match(entity.id, self._id(variable), entity.at)
        if variable in _TYPES:
            yield self._match(entity.type, self._type(variable), entity.at), named
        else:
            yield (named,)
        if scope.within:
            yield (self._match(_written(entity), self._ancestors(variable), entity.at),)

    def _match(self, value: str, attribute: Designator, at: int) -> MatchNode:
        return MatchNode(TextPlace(self.text, at), f"{V1}string-equal", PolicyLiteral(value, STRING), attribute)

    # --- attributes -------------------------------------------------------------------------------------------------

    def _id(self, variable: str) -> Designator:
        return Designator(_CATEGORIES[variable], _IDS[variable], STRING)

    def _type(self, variable: str) -> Designator:
        return Designator(_CATEGORIES[variable], _TYPES[variable], STRING)

    def _ancestors(self, variable: str) -> Designator:
        return Designator(_CATEGORIES[variable], ANCESTORS, STRING)

    # --- booleans ---------------------------------------------------------------------------------------------------

    def _apply(self, function: str, at: int, *arguments: Term, version: str = V1) -> ApplyNode:
        return ApplyNode(TextPlace(self.text, at), f"{version}{function}", arguments)

    def _joined(self, function: str, terms: Sequence[Term], at: int) -> Term:
        return terms[0] if len(terms) == 1 else self._apply(function, at, *terms)

    def _conjuncts(self, expressions: Sequence[CedarExpression]) -> list[Term]:
        """Return the terms of a conjunction; `has record` says nothing more beside `has record.member`."""
        operands = [one for expression in expressions for one in _flat(expression)]
        members = {
            (one.path.variable, one.path.names[:place])
            for one in operands
            if isinstance(one, CedarHas)
            for place in range(1, len(one.path.names))
        }
        return [
            self._truth(one)
            for one in operands
            if not isinstance(one, CedarHas) or (one.path.variable, one.path.names) not in members
        ]

    def _truth(self, expression: CedarExpression) -> Term:
        """Return the term of a boolean."""
        match expression:
            case CedarLiteral(_, value):
                return PolicyLiteral(value, BOOLEAN)
            case CedarHas(at, _, path):
                return self._has(path, at)
            case CedarNot(at, of):
                return self._apply("not", at, self._truth(of))
            case CedarJunction(at, "&&", operands):
                return self._joined("and", self._conjuncts(operands), at)
            case CedarJunction(at, _, operands):
                return self._apply("or", at, *map(self._truth, operands))
            case CedarConditional(at, test, then, otherwise):
                # The test is needed twice: with a name, it is written once.
                term = self._truth(test)
                asked = self._variable(f"if {len(self.variables) + 1}", term, at)
                one = self._apply("and", at, asked, self._truth(then))
                other = self._apply("and", at, self._apply("not", at, asked), self._truth(otherwise))
                return self._apply("or", at, one, other)
            case CedarLike(at, of, parts):
                return self._like(at, self._one(of, STRING), parts)
            case CedarIs(at, of, of_type):
                return self._is(at, of, of_type)
            case CedarRelation(at, "in", left, right):
                assert isinstance(left, CedarPath)  # noqa: S101  # it was checked
                return self._in(at, left.variable, right)
            case CedarRelation(at, "!=", left, right):
                return self._apply("not", at, self._equal(at, left, right))
            case CedarRelation(at, "==", left, right):
                return self._equal(at, left, right)
            case CedarRelation(at, sign, left, right):
                return self._apply(_ORDER[sign], at, self._one(left, INTEGER), self._one(right, INTEGER))
            case CedarCall(at, of, method, argument):
                return self._call(at, of, method, argument)
        return self._one(expression, BOOLEAN)

    def _variable(self, name: str, term: Term, at: int) -> VariableNode:
        place = TextPlace(self.text, at)
        self.variables.setdefault(name, DefinitionNode(place, name, term))
        return VariableNode(place, name)

    def _has(self, path: CedarPath, at: int) -> Term:
        if (path.variable, path.names) in self.checked.records:
            hint = f"write `{path.variable} has {'.'.join(path.names)}.member`: members of records are attributes"
            self.checked.refuse(
                "cedar.construct", f"`{path}` is a record, whose presence a request does not say", at, hint
            )
        # Of any type: an attribute of another type than expected is not absent. The expected one comes first, because
        # a source of attributes may refuse to give a value as another type.
        types = self.checked.kind(path).types
        sizes = [
            self._apply(
                "integer-greater-than",
                at,
                self._apply(f"{of}-bag-size", at, self._bag(path, of)),
                PolicyLiteral(0, INTEGER),
            )
            for of in dict.fromkeys((*types, STRING, INTEGER, BOOLEAN))
        ]
        return self._variable(f"{path.variable} has {'.'.join(path.names)}", self._apply("or", at, *sizes), at)

    def _like(self, at: int, of: Term, parts: tuple[str, ...]) -> Term:
        match parts:
            case (text,):
                return self._apply("string-equal", at, of, PolicyLiteral(text, STRING))
            case (text, ""):
                return self._apply("string-starts-with", at, PolicyLiteral(text, STRING), of, version=V3)
            case ("", text):
                return self._apply("string-ends-with", at, PolicyLiteral(text, STRING), of, version=V3)
            case ("", text, ""):
                return self._apply("string-contains", at, PolicyLiteral(text, STRING), of, version=V3)
        pattern = r"[\s\S]*".join("".join(f"\\{c}" if c in _SPECIAL else c for c in part) for part in parts)
        if len(pattern) + 2 > POLICY_PATTERN:
            self.checked.refuse("cedar.construct", f"a pattern is longer than {POLICY_PATTERN} characters", at)
        return self._apply("string-regexp-match", at, PolicyLiteral(f"^{pattern}$", STRING), of)

    def _is(self, at: int, of: CedarExpression, of_type: str) -> Term:
        if isinstance(of, CedarEntity):
            return PolicyLiteral(of.type == of_type, BOOLEAN)
        if isinstance(of, CedarPath) and of.variable in _TYPES and not of.names:
            return self._apply("string-is-in", at, PolicyLiteral(of_type, STRING), self._type(of.variable))
        return self._apply(
            "string-starts-with", at, PolicyLiteral(f'{of_type}::"', STRING), self._one(of, STRING), version=V3
        )

    def _equal(self, at: int, left: CedarExpression, right: CedarExpression) -> Term:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, CedarPath) and not one.names and isinstance(other, CedarEntity):
                return self._named(one.variable, other)
        kind = self.checked.kind(left).found()
        if kind.name is None or kind.element is not None:
            # The same values in both bags: this is equality of single values too.
            return self._of_type(
                at,
                (left, right),
                lambda of: self._apply(f"{of}-set-equals", at, self._bag(left, of), self._bag(right, of)),
            )
        (of,) = kind.types
        return self._apply(f"{of}-equal", at, self._one(left, of), self._one(right, of))

    def _of_type(self, at: int, operands: tuple[CedarExpression, ...], built: Callable[[DataType], Term]) -> Term:
        """Return the term of an operation for the type of its operands, which are bags.

        If nothing says the type, the values of an attribute do, when it is evaluated.
        """
        types = self.checked.kind(operands[0]).types
        path = next((one for operand in operands for one in _paths(operand)), None)
        if len(types) == 1 or path is None:
            return built(types[0])
        term = built(types[-1])
        for of in reversed(types[:-1]):
            size = self._apply(f"{of}-bag-size", at, self._bag(path, of))
            some = self._apply("integer-greater-than", at, size, PolicyLiteral(0, INTEGER))
            term = self._apply(
                "or",
                at,
                self._apply("and", at, some, built(of)),
                self._apply("and", at, self._apply("not", at, some), term),
            )
        return term

    def _named(self, variable: str, entity: CedarEntity) -> Term:
        """Return the term of `principal == User::"alice"`."""
        terms: list[Term] = []
        if variable in _TYPES:
            terms.append(
                self._apply("string-is-in", entity.at, PolicyLiteral(entity.type, STRING), self._type(variable))
            )
        terms.append(self._apply("string-is-in", entity.at, PolicyLiteral(entity.id, STRING), self._id(variable)))
        return self._joined("and", terms, entity.at)

    def _in(self, at: int, variable: str, right: CedarExpression) -> Term:
        ancestors = self._ancestors(variable)
        values = right.values if isinstance(right, CedarSet) else (right,)
        entities = [one for one in values if isinstance(one, CedarEntity)]
        if entities and len(entities) == len(values):
            terms: list[Term] = []
            for one in entities:
                terms.append(self._named(variable, one))
                terms.append(self._apply("string-is-in", one.at, PolicyLiteral(_written(one), STRING), ancestors))
            return self._apply("or", at, *terms)
        me = self._apply("string-bag", at, self._one(CedarPath(at, variable), STRING))
        around = self._apply("string-union", at, me, ancestors)
        return self._apply("string-at-least-one-member-of", at, around, self._bag(right, STRING))

    def _call(self, at: int, of: CedarExpression, method: str, argument: CedarExpression | None) -> Term:
        if argument is None:
            return self._of_type(
                at,
                (of,),
                lambda one: self._apply(
                    "integer-equal",
                    at,
                    self._apply(f"{one}-bag-size", at, self._bag(of, one)),
                    PolicyLiteral(0, INTEGER),
                ),
            )
        if method == "contains":
            return self._of_type(
                at,
                (argument, of),
                lambda one: self._apply(f"{one}-is-in", at, self._one(argument, one), self._bag(of, one)),
            )
        if method == "containsAny":
            return self._of_type(
                at,
                (of, argument),
                lambda one: self._apply(
                    f"{one}-at-least-one-member-of", at, self._bag(of, one), self._bag(argument, one)
                ),
            )
        # By the type of the argument: of another type, all its values would be in every bag.
        return self._of_type(
            at,
            (argument, of),
            lambda one: self._apply(f"{one}-subset", at, self._bag(argument, one), self._bag(of, one)),
        )

    # --- values -----------------------------------------------------------------------------------------------------

    def _one(self, expression: CedarExpression, of: DataType) -> Term:
        """Return the term of a single value."""
        match expression:
            case CedarLiteral(_, value):
                return PolicyLiteral(value, of)
            case CedarEntity():
                return PolicyLiteral(_written(expression), STRING)
            case CedarPath(at, variable, ()):
                named = self._apply("string-one-and-only", at, self._id(variable))
                of_type: Term = PolicyLiteral(self.checked.action_type or _ACTION_TYPE, STRING)
                if variable in _TYPES:
                    of_type = self._apply("string-one-and-only", at, self._type(variable))
                parts = (of_type, PolicyLiteral('::"', STRING), named, PolicyLiteral('"', STRING))
                return self._apply("string-concatenate", at, *parts, version=V2)
            case CedarPath(at):
                return self._apply(f"{of}-one-and-only", at, self._bag(expression, of))
        return self._truth(expression)

    def _bag(self, expression: CedarExpression, of: DataType) -> Term:
        """Return the term of the values of one type."""
        match expression:
            case CedarPath(_, variable, names) if names:
                return Designator(_CATEGORIES[variable], ".".join(names), of)
            case CedarSet(at, values):
                return self._apply(f"{of}-bag", at, *(self._one(value, of) for value in values))
        return self._apply(f"{of}-bag", expression.at, self._one(expression, of))


def _written(entity: CedarEntity) -> str:
    """Return an entity as a value: nothing in its id is escaped."""
    return f'{entity.type}::"{entity.id}"'


def _paths(expression: CedarExpression) -> Iterator[CedarPath]:
    """Yield the attributes that are an expression, or values in its list."""
    if isinstance(expression, CedarPath) and expression.names:
        yield expression
    elif isinstance(expression, CedarSet):
        for one in expression.values:
            yield from _paths(one)


def _flat(expression: CedarExpression) -> list[CedarExpression]:
    """Return the operands of a conjunction, and of those within it."""
    if not isinstance(expression, CedarJunction) or expression.sign != "&&":
        return [expression]
    return [one for operand in expression.operands for one in _flat(operand)]
