"""The role language: declarations, activation rules and authorisation rules as text (OASIS, paper 2, section 3.2).

    domain court;                                                # another domain, by petname or principal
    role tracker(plate: string);
    appointment court_order(case: string, plate: string) by court;
    fact case_assignment(who: principal, case: string);          # a look-up: true, false or unknown

    activate tracker(p)
        if appointment court_order(c, p) by court *,             # `*`: must stay true while the role is active
           fact case_assignment(principal, c) *,
           where hour BETWEEN 8 AND 17;

    allow tracker(p) to subscribe self/uk.gov.pito.Numberplate(location, time, plate = p) where .speed > 30;

The paper's `r1, …, a1, …, e1, … |- r(params)` is `activate r(params) if r1, …, a1, …, e1, …`, and its
`r, e1, … |- privilege` is `allow r to privilege if e1, …`. There are no negative rules: any rule that is satisfied is
enough. The language is described in docs/reference/roles.md.

`read_policy` parses and checks a policy. `policy_problems` returns all mistakes instead of the first.
`format_policy` writes a policy in its canonical form and keeps the comments.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.errors import LimitError, MalformedError, PenstockError, SelectorError
from penstock.model.names import NetworkName, TypeKey
from penstock.model.principals import Principal
from penstock.model.values import AttributeSpec, Kind, Ranged, Schema, Value, canonical, check_value, kind_of
from penstock.roles.limits import (
    POLICY_LENGTH,
    POLICY_STATEMENTS,
    ROLE_NAME_LENGTH,
    ROLE_PARAMETERS,
    RULE_CONDITIONS,
    SEPARATION_MEMBERS,
)
from penstock.selector import Selector, parse
from penstock.selector.ast import Compare, Literal, write_name, write_value
from penstock.trust.capabilities import Right

# ----------------------------------------------------------------------------------------------------------------------
# The syntax tree.

SELF: Final = "self"
"""The name of the domain whose policy this is."""
PRINCIPAL: Final = "principal"
"""The built-in variable: the principal that activates a role or uses a privilege."""
EVENT: Final = "event."
"""The prefix of event attributes in selectors: `.speed` is read as `event.speed`."""

MOMENT: Final[Schema] = MappingProxyType(
    {
        "time": AttributeSpec(Kind.TIMESTAMP),
        "hour": AttributeSpec(Kind.INTEGER, Ranged(0, 23)),
        "minute": AttributeSpec(Kind.INTEGER, Ranged(0, 59)),
        "weekday": AttributeSpec(Kind.INTEGER, Ranged(1, 7)),
    }
)
"""The names in conditions that depend on time. They mean the same in `penstock.guard.environment`."""


class ParameterKind(StrEnum):
    """The kind of a parameter: the five kinds of attributes, and principals."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    PRINCIPAL = "principal"

    @property
    def kind(self) -> Kind:
        """The kind of its values. A principal's value is its written form."""
        return Kind.STRING if self is ParameterKind.PRINCIPAL else Kind(str(self))

    def checked(self, value: Value) -> Value:
        """Check a value and return it in canonical form. Raises `MalformedError` (`value.*`, `principal.malformed`)."""
        check_value(self.kind, value)
        if self is ParameterKind.PRINCIPAL:
            Principal.parse(str(value))
        found = canonical(value)
        if found is None or found != found:  # noqa: PLR0124  # NaN is the value unequal to itself
            raise MalformedError("value.kind", f"expected {self}, found null or NaN")
        return found


@dataclass(frozen=True, slots=True)
class RoleParameter:
    """A parameter of a role, an appointment, a look-up or a predicate."""

    name: str
    kind: ParameterKind


@dataclass(frozen=True, slots=True)
class RoleVariable:
    """A variable, which has the same value wherever it occurs in a rule."""

    name: str
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RoleConstant:
    """A constant."""

    value: Value
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AnyValue:
    """`_`: any value."""

    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EventAttribute:
    """`.name`: an attribute of the event, as an argument of a predicate."""

    name: str
    at: int = field(default=0, compare=False, repr=False)


RoleTerm: TypeAlias = RoleVariable | RoleConstant | AnyValue | EventAttribute


class CredentialKind(StrEnum):
    """The kinds of credentials: role membership, and appointment."""

    ROLE = "role"
    APPOINTMENT = "appointment"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatement:
    """The base of statements: their place in the text, and the comments that belong to them."""

    at: int = field(default=0, compare=False, repr=False)
    comments: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DomainDeclaration(PolicyStatement):
    """Another domain. Without a principal, whoever loads the policy says which one has this petname."""

    name: str
    principal: Principal | None = None


@dataclass(frozen=True, slots=True)
class CredentialDeclaration(PolicyStatement):
    """A role or an appointment with its parameters: of this domain, or of the domain `by`."""

    kind: CredentialKind
    name: str
    parameters: tuple[RoleParameter, ...] = ()
    by: str = SELF


@dataclass(frozen=True, slots=True)
class FactDeclaration(PolicyStatement):
    """A fact: a look-up with parameters, or one value of a kind, which selectors can use."""

    name: str
    parameters: tuple[RoleParameter, ...] = ()
    kind: ParameterKind | None = None


@dataclass(frozen=True, slots=True)
class PredicateDeclaration(PolicyStatement):
    """A named condition on events: a selector over its parameters. Without a body, the local broker evaluates it."""

    name: str
    parameters: tuple[RoleParameter, ...]
    body: Selector | None = None


@dataclass(frozen=True, slots=True)
class CredentialCondition:
    """A prerequisite role or appointment. `member` conditions must stay true while the role is active."""

    kind: CredentialKind
    name: str
    arguments: tuple[RoleTerm, ...] = ()
    by: str = SELF
    member: bool = False
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FactCondition:
    """A look-up that must be true."""

    name: str
    arguments: tuple[RoleTerm, ...] = ()
    member: bool = False
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WhereCondition:
    """A selector over variables, facts without parameters, and time. It must be TRUE."""

    selector: Selector
    member: bool = False
    at: int = field(default=0, compare=False, repr=False)


RoleCondition: TypeAlias = CredentialCondition | FactCondition | WhereCondition


@dataclass(frozen=True, slots=True)
class ActivationRule(PolicyStatement):
    """A rule by which a principal can activate a role."""

    role: str
    arguments: tuple[RoleTerm, ...] = ()
    conditions: tuple[RoleCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class PredicateCall:
    """The use of a named predicate: its parameters bound to event attributes, variables or constants."""

    name: str
    arguments: tuple[RoleTerm, ...]
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EventPrivilege:
    """A right on event types of an owner.

    `types` is a type's name, or the beginning of names and `*`. With `below`, types that extend it are included.
    Without `attributes` all are; `forced` attributes are included.
    """

    right: Right
    owner: str
    types: str
    below: bool = False
    attributes: tuple[str, ...] | None = None
    forced: tuple[tuple[str, RoleTerm], ...] = ()
    where: Selector | None = None
    matching: tuple[PredicateCall, ...] = ()
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class NetworkPrivilege:
    """A right on a network: to connect, to be a broker, to install types."""

    right: Right
    owner: str
    network: str
    at: int = field(default=0, compare=False, repr=False)


class AppointingRight(StrEnum):
    """The rights on appointments."""

    APPOINT = "appoint"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class AppointPrivilege:
    """The right to appoint or to withdraw an appointment of this domain. `_`, or no arguments at all, permit any."""

    right: AppointingRight
    appointment: str
    arguments: tuple[RoleTerm, ...] = ()
    at: int = field(default=0, compare=False, repr=False)


RolePrivilege: TypeAlias = EventPrivilege | NetworkPrivilege | AppointPrivilege


@dataclass(frozen=True, slots=True)
class AuthorisationRule(PolicyStatement):
    """A rule by which an active role has a privilege, while the conditions are true."""

    role: str
    arguments: tuple[RoleTerm, ...]
    privilege: RolePrivilege
    conditions: tuple[RoleCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class SeparationOfDuty(PolicyStatement):
    """Credentials of which a principal can hold one only, where the variables that they share have the same values.

    Static separation is about appointments, dynamic separation about active roles in all sessions of the principal.
    """

    static: bool
    members: tuple[CredentialCondition, ...]


@dataclass(frozen=True, slots=True)
class RoleCardinality(PolicyStatement):
    """How many principals can have a role active at a time, in all sessions. Counted per value of each variable."""

    role: str
    arguments: tuple[RoleTerm, ...]
    most: int


Statement: TypeAlias = (
    DomainDeclaration
    | CredentialDeclaration
    | FactDeclaration
    | PredicateDeclaration
    | ActivationRule
    | AuthorisationRule
    | SeparationOfDuty
    | RoleCardinality
)


@dataclass(frozen=True, slots=True)
class RolePolicy:
    """A parsed policy. `source` is the text that positions refer to."""

    statements: tuple[Statement, ...] = ()
    #: comments after the last statement
    comments: tuple[str, ...] = field(default=(), compare=False, repr=False)
    source: str = field(default="", compare=False, repr=False)

    def credentials(self) -> Iterator[CredentialDeclaration]:
        """Yield the declared roles and appointments."""
        return (one for one in self.statements if isinstance(one, CredentialDeclaration))

    def facts(self) -> Mapping[str, FactDeclaration]:
        """Return the declared facts by name."""
        return {one.name: one for one in self.statements if isinstance(one, FactDeclaration)}

    def scalars(self) -> Schema:
        """Return the schema of facts without parameters."""
        return {name: AttributeSpec(one.kind.kind) for name, one in self.facts().items() if one.kind is not None}

    def predicates(self) -> Mapping[str, PredicateDeclaration]:
        """Return the declared predicates by name."""
        return {one.name: one for one in self.statements if isinstance(one, PredicateDeclaration)}

    def activations(self) -> tuple[ActivationRule, ...]:
        """Return the activation rules."""
        return tuple(one for one in self.statements if isinstance(one, ActivationRule))

    def authorisations(self) -> tuple[AuthorisationRule, ...]:
        """Return the authorisation rules."""
        return tuple(one for one in self.statements if isinstance(one, AuthorisationRule))

    def line(self, at: int) -> int:
        """Return the line of a position, from 1."""
        return self.source.count("\n", 0, at) + 1


# ----------------------------------------------------------------------------------------------------------------------
# Parse.

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_COMMENT: Final = re.compile(r"#[^\n]*")
_REFERENCE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:.\-]*/[A-Za-z0-9_.\-]*\*?", re.ASCII)
_QUOTED: Final = re.compile(r'"[^"\n]*"')
_INTEGER: Final = re.compile(r"[0-9]{1,18}(?![0-9A-Za-z_.])", re.ASCII)
#: a constant in the words of selectors
_LITERAL: Final = re.compile(
    r"TIMESTAMP\s*'[^']*'|'[^']*(?:''[^']*)*'|-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|TRUE\b|FALSE\b"
)
#: what matters for the end of a selector, and the attributes in it
_IN_SELECTOR: Final = re.compile(
    r"""'[^']*(?:''[^']*)*'|"[^"]*(?:""[^"]*)*"|\#[^\n]*|(?P<word>[^\W\d]\w*)|[0-9][\w.]*"""
    r"""|\.(?P<attribute>[^\W\d]\w*|"[^"]*(?:""[^"]*)*")|(?P<mark>[(),;])""",
)
_ENDING: Final = frozenset({"if", "matching", "where"})


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """A mistake in a policy: a stable code, what is wrong, where, and what to do."""

    code: str
    message: str
    at: int
    hint: str = ""


def place(source: str, at: int) -> tuple[int, int]:
    """Return line and column of a position, both from 1."""
    return source.count("\n", 0, at) + 1, at - (source.rfind("\n", 0, at) + 1) + 1


def policy_error(source: str, problem: PolicyProblem) -> MalformedError:
    """Return a mistake as an error that says line and column."""
    line, column = place(source, problem.at)
    return MalformedError(
        problem.code,
        f"line {line}, column {column}: {problem.message}",
        hint=problem.hint,
        line=line,
        column=column,
    )


class _PolicyReader:
    """One pass over the text. Nothing recurses: the language nests only inside selectors, which are bounded."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.comments: list[str] = []
        #: selectors that were parsed, by their text: rules repeat them
        self.parsed: dict[str, Selector] = {}

    def fail(self, message: str, hint: str = "", at: int | None = None) -> MalformedError:
        problem = PolicyProblem("role.syntax", message, self.at if at is None else at, hint)
        return policy_error(self.source, problem)

    def too_many(self, what: str, most: int) -> LimitError:
        line, _ = place(self.source, self.at)
        return LimitError("role.limit", f"line {line}: more than {most} {what}", hint="split the policy", limit=what)

    # Tokens.

    def skip(self) -> None:
        """Skip white space; keep comments for the statement."""
        while True:
            if found := _SPACE.match(self.source, self.at):
                self.at = found.end()
            elif found := _COMMENT.match(self.source, self.at):
                self.comments.append(found.group()[1:].strip())
                self.at = found.end()
            else:
                return

    def peek(self, text: str) -> bool:
        self.skip()
        if not self.source.startswith(text, self.at):
            return False
        return not text[-1].isalnum() or not _word_continues(self.source, self.at + len(text))

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def expect(self, text: str, hint: str = "") -> None:
        if not self.take(text):
            raise self.fail(f"expected `{text}`, found {self.found()}", hint)

    def found(self) -> str:
        self.skip()
        word = _NAME.match(self.source, self.at)
        text = word.group() if word else self.source[self.at : self.at + 1]
        return f"`{text[:40]}`" if text else "the end of the policy"

    def name(self, what: str) -> str:
        self.skip()
        found = _NAME.match(self.source, self.at)
        if found is None:
            raise self.fail(f"expected {what}, found {self.found()}")
        if len(found.group()) > ROLE_NAME_LENGTH:
            raise self.fail(f"a name is longer than {ROLE_NAME_LENGTH} characters")
        self.at = found.end()
        return found.group()

    # Statements.

    def policy(self) -> RolePolicy:
        statements: list[Statement] = []
        self.skip()
        while self.at < len(self.source):
            if len(statements) >= POLICY_STATEMENTS:
                raise self.too_many("statements", POLICY_STATEMENTS)
            at = self.at
            statement = self.statement()
            self.expect(";", "every statement ends with a semicolon")
            self.same_line_comment()
            statements.append(replace(statement, at=at, comments=tuple(self.comments)))
            self.comments = []
            self.skip()
        return RolePolicy(tuple(statements), tuple(self.comments), self.source)

    def same_line_comment(self) -> None:
        end = self.source.find("\n", self.at)
        rest = self.source[self.at : end if end >= 0 else len(self.source)]
        if rest.strip().startswith("#"):
            self.comments.append(rest.strip()[1:].strip())
            self.at += len(rest)

    def statement(self) -> Statement:
        at = self.at
        match self.name("a statement"):
            case "domain":
                return DomainDeclaration(self.name("a domain's name"), self.principal() if self.take("=") else None)
            case "role":
                return self.credential(CredentialKind.ROLE)
            case "appointment":
                return self.credential(CredentialKind.APPOINTMENT)
            case "fact":
                return self.fact()
            case "predicate":
                name, parameters = self.name("a predicate's name"), self.parameters()
                return PredicateDeclaration(name, parameters, self.selector() if self.take("is") else None)
            case "activate":
                role, arguments = self.name("a role"), self.arguments()
                return ActivationRule(role, arguments, self.conditions() if self.take("if") else ())
            case "allow":
                role, arguments = self.name("a role"), self.arguments()
                self.expect("to", "write `allow ROLE to PRIVILEGE;`")
                privilege = self.privilege()
                return AuthorisationRule(role, arguments, privilege, self.conditions() if self.take("if") else ())
            case "separate":
                return self.separation()
            case "limit":
                role, arguments = self.name("a role"), self.arguments()
                self.expect("to", "write `limit ROLE to NUMBER;`")
                return RoleCardinality(role, arguments, self.integer())
            case other:
                raise self.fail(
                    f"unknown statement `{other[:40]}`",
                    "expected domain, role, appointment, fact, predicate, activate, allow, separate or limit",
                    at,
                )

    def principal(self) -> Principal:
        self.skip()
        found = re.compile(r"[a-z0-9]+:[a-z0-9]+").match(self.source, self.at)
        if found is None:
            raise self.fail(f"expected a principal, found {self.found()}", "for example `ed25519:…`")
        try:
            principal = Principal.parse(found.group())
        except MalformedError as error:
            raise self.fail(error.message, error.hint) from error
        self.at = found.end()
        return principal

    def credential(self, kind: CredentialKind) -> CredentialDeclaration:
        name = self.name(f"the {kind}'s name")
        parameters = self.parameters() if self.peek("(") else ()
        return CredentialDeclaration(kind, name, parameters, self.by())

    def by(self) -> str:
        return self.name("a domain's name") if self.take("by") else SELF

    def fact(self) -> FactDeclaration:
        name = self.name("a fact's name")
        if self.peek("("):
            parameters = self.parameters()
            if not parameters:
                raise self.fail("a look-up has at least one parameter", f"write `fact {name}: boolean;`")
            return FactDeclaration(name, parameters)
        self.expect(":", f"write `fact {name}(PARAMETERS);` or `fact {name}: KIND;`")
        return FactDeclaration(name, (), self.kind())

    def kind(self) -> ParameterKind:
        self.skip()
        at = self.at
        word = self.name("a kind")
        try:
            return ParameterKind(word)
        except ValueError:
            raise self.fail(f"unknown kind `{word[:40]}`", f"expected {', '.join(ParameterKind)}", at) from None

    def parameters(self) -> tuple[RoleParameter, ...]:
        found: list[RoleParameter] = []
        self.expect("(")
        while not self.take(")"):
            if found:
                self.expect(",")
            if len(found) >= ROLE_PARAMETERS:
                raise self.too_many("parameters", ROLE_PARAMETERS)
            name = self.name("a parameter's name")
            self.expect(":", f"write `{name}: KIND`")
            found.append(RoleParameter(name, self.kind()))
        return tuple(found)

    def arguments(self, *, event: bool = False) -> tuple[RoleTerm, ...]:
        found: list[RoleTerm] = []
        if not self.take("("):
            return ()
        while not self.take(")"):
            if found:
                self.expect(",")
            if len(found) >= ROLE_PARAMETERS:
                raise self.too_many("arguments", ROLE_PARAMETERS)
            found.append(self.term(event=event))
        return tuple(found)

    def term(self, *, event: bool = False) -> RoleTerm:
        self.skip()
        at = self.at
        if found := _LITERAL.match(self.source, at):
            self.at = found.end()
            return RoleConstant(self.literal(found.group(), at), at)
        if event and self.take("."):
            return EventAttribute(self.attribute(), at)
        name = self.name("a variable, a constant or `_`")
        return AnyValue(at) if name == "_" else RoleVariable(name, at)

    def literal(self, text: str, at: int) -> Value:
        try:
            root = parse(f"x = {text}").root
        except PenstockError as error:
            raise self.fail(error.message, error.hint, at) from error
        if not isinstance(root, Compare) or not isinstance(root.right, Literal) or root.right.value is None:
            raise self.fail("this is not a constant", "constants are written as in selectors", at)
        return root.right.value

    def attribute(self) -> str:
        if found := _QUOTED.match(self.source, self.at):
            self.at = found.end()
            return found.group()[1:-1]
        return self.name("an attribute's name")

    def integer(self) -> int:
        self.skip()
        found = _INTEGER.match(self.source, self.at)
        if found is None:
            raise self.fail(f"expected a number, found {self.found()}")
        self.at = found.end()
        return int(found.group())

    def conditions(self) -> tuple[RoleCondition, ...]:
        found = [self.condition()]
        while self.take(","):
            if len(found) >= RULE_CONDITIONS:
                raise self.too_many("conditions of a rule", RULE_CONDITIONS)
            found.append(self.condition())
        return tuple(found)

    def condition(self) -> RoleCondition:
        self.skip()
        at = self.at
        match self.name("a condition"):
            case "role":
                return self.prerequisite(CredentialKind.ROLE, at)
            case "appointment":
                return self.prerequisite(CredentialKind.APPOINTMENT, at)
            case "fact":
                name, arguments = self.name("a fact"), self.arguments()
                return FactCondition(name, arguments, self.take("*"), at)
            case "where":
                selector = self.selector(member=True)
                return WhereCondition(selector, self.take("*"), at)
            case other:
                raise self.fail(f"unknown condition `{other[:40]}`", "expected role, appointment, fact or where", at)

    def prerequisite(self, kind: CredentialKind, at: int) -> CredentialCondition:
        name, arguments, by = self.name(f"the {kind}'s name"), self.arguments(), self.by()
        return CredentialCondition(kind, name, arguments, by, self.take("*"), at)

    def separation(self) -> SeparationOfDuty:
        static = self.take("static")
        if not static:
            self.expect("dynamic", "write `separate static APPOINTMENT, …;` or `separate dynamic ROLE, …;`")
        kind = CredentialKind.APPOINTMENT if static else CredentialKind.ROLE
        members: list[CredentialCondition] = []
        while not members or self.take(","):
            if len(members) >= SEPARATION_MEMBERS:
                raise self.too_many("members of a separation", SEPARATION_MEMBERS)
            self.skip()
            at = self.at
            name, arguments, by = self.name(f"the {kind}'s name"), self.arguments(), self.by()
            members.append(CredentialCondition(kind, name, arguments, by, at=at))
        return SeparationOfDuty(static, tuple(members))

    # Privileges.

    def privilege(self) -> RolePrivilege:
        self.skip()
        at = self.at
        word = self.name("a privilege")
        while self.source.startswith("-", self.at):
            self.at += 1
            word += "-" + self.name("a privilege")
        if word in [*AppointingRight]:
            return AppointPrivilege(AppointingRight(word), self.name("an appointment"), self.arguments(), at)
        if word not in [*Right]:
            raise self.fail(f"unknown privilege `{word[:40]}`", f"expected {', '.join((*Right, *AppointingRight))}", at)
        right = Right(word)
        below = not right.on_network and self.take("below")
        owner, name = self.reference()
        if right.on_network:
            return NetworkPrivilege(right, owner, name, at)
        attributes, forced = self.attributes()
        where: Selector | None = None
        if self.take("where"):
            where = self.selector(event=True)
        calls: list[PredicateCall] = []
        while self.take("matching"):
            if len(calls) >= RULE_CONDITIONS:
                raise self.too_many("predicates", RULE_CONDITIONS)
            self.skip()
            called = self.at
            calls.append(PredicateCall(self.name("a predicate"), self.arguments(event=True), called))
        return EventPrivilege(right, owner, name, below, attributes, forced, where, tuple(calls), at)

    def reference(self) -> tuple[str, str]:
        """Read `owner/name`, in double quotes if the name has spaces."""
        self.skip()
        if found := _QUOTED.match(self.source, self.at):
            text = found.group()[1:-1]
        elif found := _REFERENCE.match(self.source, self.at):
            text = found.group()
        else:
            raise self.fail(f"expected OWNER/NAME, found {self.found()}", "for example `self/org.example.Reading`")
        owner, slash, name = text.partition("/")
        if not slash or not owner or not name:
            raise self.fail("expected OWNER/NAME", "for example `self/org.example.Reading`")
        self.at = found.end()
        return owner, name

    def attributes(self) -> tuple[tuple[str, ...] | None, tuple[tuple[str, RoleTerm], ...]]:
        """Read `(name, name = term, …)`. Nothing, or `(*)`, means all attributes; `(*, name = term)` forces one."""
        if not self.take("("):
            return None, ()
        every = self.take("*")
        names: list[str] = []
        forced: list[tuple[str, RoleTerm]] = []
        first = not every
        while not self.take(")"):
            if not first:
                self.expect(",")
            first = False
            self.skip()
            name = self.attribute()
            names.append(name)
            if self.take("="):
                forced.append((name, self.term()))
            elif every:
                raise self.fail(f"`*` includes `{name}` already", "name it only to force its value")
            if len(names) > 4 * RULE_CONDITIONS * ROLE_PARAMETERS:
                raise self.too_many("attributes", 4 * RULE_CONDITIONS * ROLE_PARAMETERS)
        return (None if every else tuple(names)), tuple(forced)

    # Selectors.

    def selector(self, *, member: bool = False, event: bool = False) -> Selector:
        """Read a selector up to the end of its part of the statement."""
        self.skip()
        begin, text = self.at, self.selector_text(event=event)
        if member and text.rstrip().endswith("*"):
            # A `*` at the end is not a multiplication: it marks the condition.
            text = text.rstrip()[:-1]
        source, shifts = self.with_attributes(text)
        try:
            selector = self.parsed.get(source) or parse(source)
        except SelectorError as error:
            back = sum(longer for at, longer in shifts if at < error.position)
            raise policy_error(
                self.source, PolicyProblem(error.code, error.message, begin + error.position - back, error.hint)
            ) from error
        except LimitError as error:
            line, _ = place(self.source, begin)
            raise LimitError(error.code, f"line {line}: {error.message}", hint=error.hint) from error
        self.parsed[source] = selector
        self.at = begin + len(text)
        return selector

    def selector_text(self, *, event: bool) -> str:
        depth, end = 0, self.at
        pieces: list[str] = []
        while end < len(self.source):
            found = _IN_SELECTOR.search(self.source, end)
            if found is None:
                break
            if found.group().startswith("#"):
                self.comments.append(found.group()[1:].strip())
                pieces += [self.source[end : found.start()], " " * len(found.group())]
                end = found.end()
                continue
            if found["attribute"] and not event:
                raise self.fail("event attributes can be used only in privileges", "leave the dot out", found.start())
            mark = found["mark"]
            if mark == ";" or (depth == 0 and (mark in (",", ")") or found["word"] in _ENDING)):
                pieces.append(self.source[end : found.start()])
                return "".join(pieces)
            depth += {"(": 1, ")": -1}.get(mark or "", 0)
            pieces.append(self.source[end : found.end()])
            end = found.end()
        raise self.fail("the statement does not end", "every statement ends with a semicolon")

    @staticmethod
    def with_attributes(text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the text with `.name` as `"event.name"`, and where it became longer by how much."""
        shifts: list[tuple[int, int]] = []
        pieces: list[str] = []
        end = length = 0
        for found in _IN_SELECTOR.finditer(text):
            if name := found["attribute"]:
                plain = name[1:-1].replace('""', '"') if name.startswith('"') else name
                written = write_name(EVENT + plain)
                pieces += [text[end : found.start()], written]
                length += found.start() - end + len(written)
                shifts.append((length - 1, len(written) - len(found.group())))
                end = found.end()
        return "".join([*pieces, text[end:]]), shifts


def _word_continues(source: str, end: int) -> bool:
    return end < len(source) and (source[end].isalnum() or source[end] == "_")


def parse_policy(source: str) -> RolePolicy:
    """Parse a policy without checking that its names are declared.

    Raises `LimitError` (`role.limit`, `selector.limit`), `MalformedError` (`role.syntax`, and `selector.*` in a
    selector). The message says line and column.
    """
    if len(source) > POLICY_LENGTH:
        raise LimitError(
            "role.limit", f"a role policy has more than {POLICY_LENGTH} characters", hint="split it", limit="length"
        )
    return _PolicyReader(source).policy()


def read_policy(source: str) -> RolePolicy:
    """Parse and check a policy.

    Raises as `parse_policy`, and `MalformedError` for the first mistake that `policy_problems` finds.
    """
    policy = parse_policy(source)
    for problem in policy_problems(policy):
        raise policy_error(source, problem)
    return policy


# ----------------------------------------------------------------------------------------------------------------------
# Check: every name is declared once, has the right number of arguments, and variables have one kind and a value.


def policy_problems(policy: RolePolicy) -> list[PolicyProblem]:
    """Return the mistakes in a policy, in the order of the text.

    The codes are `role.duplicate`, `role.reserved`, `role.unknown`, `role.arity`, `role.kind`, `role.unbound`,
    `role.separation`, `role.cardinality`, `role.reference`, and `selector.*` for selectors that do not fit.
    """
    return sorted(_PolicyChecker(policy).problems(), key=lambda problem: problem.at)


class _PolicyChecker:
    def __init__(self, policy: RolePolicy) -> None:
        self.policy = policy
        self.found: list[PolicyProblem] = []
        self.domains = {one.name for one in policy.statements if isinstance(one, DomainDeclaration)} | {SELF}
        self.credentials = {(one.kind, one.by, one.name): one for one in policy.credentials()}
        self.facts = policy.facts()
        self.scalars = policy.scalars()
        self.predicates = policy.predicates()

    def problem(self, code: str, message: str, at: int, hint: str = "") -> None:
        self.found.append(PolicyProblem(code, message, at, hint))

    def problems(self) -> list[PolicyProblem]:
        self.declarations()
        for one in self.policy.statements:
            match one:
                case ActivationRule():
                    self.activation(one)
                case AuthorisationRule():
                    self.authorisation(one)
                case SeparationOfDuty():
                    self.separation(one)
                case RoleCardinality():
                    self.cardinality(one)
                case _:
                    pass
        return self.found

    def declarations(self) -> None:
        seen: set[tuple[object, ...]] = set()
        for one in self.policy.statements:
            key: tuple[object, ...]
            match one:
                case DomainDeclaration():
                    key = ("domain", one.name)
                    if one.name == SELF:
                        self.problem("role.reserved", f"`{SELF}` is this domain", one.at, "choose another name")
                case CredentialDeclaration():
                    key = (one.kind, one.by, one.name)
                    self.domain(one.by, one.at)
                    self.parameters(one.parameters, one.at)
                case FactDeclaration():
                    key = ("fact", one.name)
                    self.parameters(one.parameters, one.at)
                    if one.name in MOMENT or one.name == PRINCIPAL:
                        self.problem("role.reserved", f"`{one.name}` is built in", one.at, "choose another name")
                case PredicateDeclaration():
                    key = ("predicate", one.name)
                    self.parameters(one.parameters, one.at)
                    schema = {parameter.name: AttributeSpec(parameter.kind.kind) for parameter in one.parameters}
                    if one.body is not None:
                        self.selector(one.body, schema, one.at)
                case _:
                    continue
            if key in seen:
                self.problem("role.duplicate", f"`{one.name}` is declared twice", one.at, "remove one of them")
            seen.add(key)

    def parameters(self, parameters: Iterable[RoleParameter], at: int) -> None:
        names = [parameter.name for parameter in parameters]
        for name in names:
            if name in MOMENT or name in (PRINCIPAL, "_"):
                self.problem("role.reserved", f"`{name}` is built in", at, "choose another name")
        if len(set(names)) != len(names):
            self.problem("role.duplicate", "two parameters have the same name", at, "rename one of them")

    def domain(self, name: str, at: int) -> None:
        if name not in self.domains:
            self.problem("role.unknown", f"unknown domain `{name}`", at, f"declare it: `domain {name};`")

    # Terms and conditions. `kinds` are the kinds of variables so far.

    def arguments(
        self, terms: tuple[RoleTerm, ...], parameters: tuple[RoleParameter, ...], what: str, at: int, kinds: "_Kinds"
    ) -> None:
        if len(terms) != len(parameters):
            count = len(parameters)
            self.problem("role.arity", f"{what} has {count} arguments, not {len(terms)}", at, "see its declaration")
            return
        for term, parameter in zip(terms, parameters, strict=True):
            self.term(term, parameter.kind, kinds, at)

    def term(self, term: RoleTerm, kind: ParameterKind, kinds: "_Kinds", at: int) -> None:
        match term:
            case RoleVariable(name):
                known = kinds.setdefault(name, kind)
                if name in MOMENT or name in self.scalars:
                    what = "built in" if name in MOMENT else "a fact, and cannot be a variable too"
                    self.problem("role.reserved", f"`{name}` is {what}", term.at or at, "choose another name")
                elif known is not kind:
                    message = f"`{name}` is {_phrase(kind)} here and {_phrase(known)} elsewhere"
                    self.problem("role.kind", message, term.at or at, "a variable has one kind in a rule")
            case RoleConstant(value):
                try:
                    kind.checked(value)
                except MalformedError:
                    message = f"expected {_phrase(kind)}, found {kind_of(value).phrase}"
                    self.problem("role.kind", message, term.at or at)
            case EventAttribute() | AnyValue():
                pass

    def credential(self, kind: CredentialKind, name: str, by: str, at: int) -> CredentialDeclaration | None:
        self.domain(by, at)
        found = self.credentials.get((kind, by, name))
        if found is None:
            suffix = "" if by == SELF else f" by {by}"
            self.problem(
                "role.unknown", f"unknown {kind} `{name}`{suffix}", at, f"declare it: `{kind} {name}{suffix};`"
            )
        return found

    def condition(self, one: RoleCondition, kinds: "_Kinds") -> None:
        match one:
            case CredentialCondition():
                declared = self.credential(one.kind, one.name, one.by, one.at)
                if declared is not None:
                    self.arguments(one.arguments, declared.parameters, f"{one.kind} `{one.name}`", one.at, kinds)
            case FactCondition():
                fact = self.facts.get(one.name)
                if fact is None:
                    hint = f"declare it: `fact {one.name}(…);`"
                    self.problem("role.unknown", f"unknown fact `{one.name}`", one.at, hint)
                elif fact.kind is not None:
                    message = f"fact `{one.name}` has no parameters"
                    self.problem("role.arity", message, one.at, f"use it in a selector: `where {one.name}`")
                else:
                    self.arguments(one.arguments, fact.parameters, f"fact `{one.name}`", one.at, kinds)
            case WhereCondition():
                pass

    def where(self, one: WhereCondition, kinds: "_Kinds") -> None:
        for name in sorted(one.selector.attributes - self.scalars.keys() - MOMENT.keys()):
            if name not in kinds:
                message = f"`{name}` has no value: it is not a fact, and no other condition binds it"
                self.problem("role.unbound", message, one.at, "use it as an argument of a role, appointment or fact")
                return
        self.selector(one.selector, {**self.scalars, **MOMENT, **_schema(kinds)}, one.at)

    def selector(self, selector: Selector, schema: Schema, at: int) -> None:
        try:
            selector.check(schema)
        except SelectorError as error:
            self.problem(error.code, error.message, at, error.hint)

    # Rules.

    def activation(self, rule: ActivationRule) -> None:
        kinds: _Kinds = {PRINCIPAL: ParameterKind.PRINCIPAL}
        declared = self.credential(CredentialKind.ROLE, rule.role, SELF, rule.at)
        if declared is not None:
            self.arguments(rule.arguments, declared.parameters, f"role `{rule.role}`", rule.at, kinds)
        for condition in rule.conditions:
            self.condition(condition, kinds)
        for condition in rule.conditions:
            if isinstance(condition, WhereCondition):
                self.where(condition, kinds)
        used = {PRINCIPAL} | {name for condition in rule.conditions for name in condition_variables(condition)}
        for term in rule.arguments:
            if isinstance(term, AnyValue):
                self.problem("role.unbound", "a role that is activated has a value for each parameter", term.at)
            elif isinstance(term, RoleVariable) and term.name not in used:
                message = (
                    f"parameter `{term.name}` of role `{rule.role}` is unbound: whoever activates it could choose any"
                )
                self.problem("role.unbound", message, term.at, "use it in a condition")

    def authorisation(self, rule: AuthorisationRule) -> None:
        kinds: _Kinds = {PRINCIPAL: ParameterKind.PRINCIPAL}
        declared = self.credential(CredentialKind.ROLE, rule.role, SELF, rule.at)
        if declared is not None:
            self.arguments(rule.arguments, declared.parameters, f"role `{rule.role}`", rule.at, kinds)
        for condition in rule.conditions:
            if isinstance(condition, CredentialCondition):
                message = "an authorisation rule has one role; other conditions are facts and selectors"
                self.problem("role.condition", message, condition.at, "put it into an activation rule")
            elif condition.member:
                message = "conditions of authorisation rules are not marked: they are always monitored"
                self.problem("role.condition", message, condition.at, "leave the `*` out")
            self.condition(condition, kinds)
        for condition in rule.conditions:
            if isinstance(condition, WhereCondition):
                self.where(condition, kinds)
        self.privilege(rule.privilege, kinds)

    def privilege(self, privilege: RolePrivilege, kinds: "_Kinds") -> None:
        match privilege:
            case EventPrivilege():
                self.owner(privilege.owner, privilege.at)
                self.type_name(privilege)
                names = (
                    [*(name for name, _ in privilege.forced)] if privilege.attributes is None else privilege.attributes
                )
                if len(set(names)) != len(names):
                    self.problem("role.duplicate", "an attribute is listed twice", privilege.at, "remove one of them")
                for name, term in privilege.forced:
                    if isinstance(term, AnyValue):
                        self.problem("role.unbound", f"`{name}` is forced to a value, which `_` is not", term.at)
                    self.bound(term, kinds)
                if privilege.where is not None:
                    plain = [name for name in privilege.where.attributes if not name.startswith(EVENT)]
                    for name in sorted(plain):
                        if name not in kinds:
                            message = f"`{name}` has no value: the role does not bind it"
                            self.problem("role.unbound", message, privilege.at, f"an event attribute is `.{name}`")
                for call in privilege.matching:
                    self.call(call, kinds)
            case NetworkPrivilege():
                self.owner(privilege.owner, privilege.at)
                try:
                    NetworkName(_ANYBODY, privilege.network)
                except MalformedError as error:
                    self.problem("role.reference", error.message, privilege.at, error.hint)
            case AppointPrivilege():
                declared = self.credential(CredentialKind.APPOINTMENT, privilege.appointment, SELF, privilege.at)
                if declared is not None and privilege.arguments:
                    what = f"appointment `{privilege.appointment}`"
                    for term in privilege.arguments:
                        self.bound(term, kinds)
                    self.arguments(privilege.arguments, declared.parameters, what, privilege.at, kinds)

    def bound(self, term: RoleTerm, kinds: "_Kinds") -> None:
        if isinstance(term, RoleVariable) and term.name not in kinds:
            self.problem("role.unbound", f"`{term.name}` has no value: the role does not bind it", term.at)

    def call(self, call: PredicateCall, kinds: "_Kinds") -> None:
        predicate = self.predicates.get(call.name)
        if predicate is None:
            hint = f"declare it: `predicate {call.name}(…) is …;`, or without `is` if brokers evaluate it"
            self.problem("role.unknown", f"unknown predicate `{call.name}`", call.at, hint)
            return
        for term in call.arguments:
            self.bound(term, kinds)
            if isinstance(term, AnyValue):
                self.problem("role.unbound", "a predicate needs a value, which `_` is not", term.at)
        self.arguments(call.arguments, predicate.parameters, f"predicate `{call.name}`", call.at, kinds)

    def owner(self, owner: str, at: int) -> None:
        if ":" not in owner:
            self.domain(owner, at)
            return
        try:
            Principal.parse(owner)
        except MalformedError as error:
            self.problem("role.reference", error.message, at, error.hint)

    def type_name(self, privilege: EventPrivilege) -> None:
        name = privilege.types.removesuffix("*")
        if privilege.below and name != privilege.types:
            self.problem("role.reference", "`below` is followed by one type", privilege.at, "leave the `*` out")
        # The beginning of a name can end anywhere in it.
        whole = f"{name}x" if name != privilege.types else name
        try:
            TypeKey(_ANYBODY, whole)
        except MalformedError as error:
            self.problem("role.reference", error.message, privilege.at, error.hint)

    def separation(self, one: SeparationOfDuty) -> None:
        kinds: _Kinds = {}
        if len({(member.by, member.name) for member in one.members}) != len(one.members) or len(one.members) < 2:
            message = "a separation of duty has two members or more, each once"
            self.problem("role.separation", message, one.at)
        for member in one.members:
            if not one.static and member.by != SELF:
                message = "dynamic separation is about roles of this domain"
                self.problem("role.separation", message, member.at, "other domains decide about theirs")
            declared = self.credential(member.kind, member.name, member.by, member.at)
            if declared is not None and member.arguments:
                what = f"{member.kind} `{member.name}`"
                self.arguments(member.arguments, declared.parameters, what, member.at, kinds)

    def cardinality(self, one: RoleCardinality) -> None:
        declared = self.credential(CredentialKind.ROLE, one.role, SELF, one.at)
        if declared is not None and one.arguments:
            self.arguments(one.arguments, declared.parameters, f"role `{one.role}`", one.at, {})
        if one.most < 1:
            self.problem("role.cardinality", "at least one principal must be able to have the role", one.at)


_Kinds: TypeAlias = dict[str, ParameterKind]
_ANYBODY: Final = Principal(bytes(32))


def _phrase(kind: ParameterKind) -> str:
    return "a principal" if kind is ParameterKind.PRINCIPAL else kind.kind.phrase


def _schema(kinds: Mapping[str, ParameterKind]) -> dict[str, AttributeSpec]:
    return {name: AttributeSpec(kind.kind) for name, kind in kinds.items()}


def condition_variables(condition: RoleCondition) -> frozenset[str]:
    """Return the variables that a condition uses, and for a selector its facts too."""
    if isinstance(condition, WhereCondition):
        return condition.selector.attributes - MOMENT.keys()
    return frozenset(term.name for term in condition.arguments if isinstance(term, RoleVariable))


# ----------------------------------------------------------------------------------------------------------------------
# Write.

_WIDTH: Final = 120


def format_policy(policy: RolePolicy) -> str:
    """Return a policy in its canonical form: one statement after the other, with the comments before each.

    `read_policy(format_policy(policy)) == policy`.
    """
    lines: list[str] = []
    previous: Statement | None = None
    for one in policy.statements:
        rule = isinstance(one, ActivationRule | AuthorisationRule)
        if previous is not None and (_group(previous) != _group(one) or one.comments or rule):
            lines.append("")
        lines += [_comment(comment) for comment in one.comments]
        lines.append(format_statement(one))
        previous = one
    if policy.comments:
        lines += [""] * bool(lines) + [_comment(comment) for comment in policy.comments]
    return "".join(f"{line}\n" for line in lines)


def _group(one: Statement) -> object:
    return one.kind if isinstance(one, CredentialDeclaration) else type(one)


def _comment(text: str) -> str:
    return f"# {text}".rstrip()


def format_statement(one: Statement) -> str:
    """Return a statement as text, without its comments."""
    match one:
        case DomainDeclaration(name, principal):
            return f"domain {name};" if principal is None else f"domain {name} = {principal};"
        case CredentialDeclaration(kind, name, parameters, by):
            return f"{kind} {name}{_parameters(parameters)}{_by(by)};"
        case FactDeclaration(name, parameters, kind):
            return f"fact {name}{_parameters(parameters)};" if kind is None else f"fact {name}: {kind};"
        case PredicateDeclaration(name, parameters, body):
            return f"predicate {name}{_parameters(parameters) or '()'}{'' if body is None else f' is {body.text}'};"
        case ActivationRule(role, arguments, conditions):
            return _rule(f"activate {role}{_arguments(arguments)}", conditions)
        case AuthorisationRule(role, arguments, privilege, conditions):
            return _rule(f"allow {role}{_arguments(arguments)} to {format_privilege(privilege)}", conditions)
        case SeparationOfDuty(static, members):
            listed = ", ".join(f"{m.name}{_arguments(m.arguments)}{_by(m.by)}" for m in members)
            return f"separate {'static' if static else 'dynamic'} {listed};"
        case RoleCardinality(role, arguments, most):
            return f"limit {role}{_arguments(arguments)} to {most};"


def _rule(head: str, conditions: tuple[RoleCondition, ...]) -> str:
    if not conditions:
        return f"{head};"
    written = [format_condition(condition) for condition in conditions]
    line = f"{head} if {', '.join(written)};"
    if len(line) <= _WIDTH and len(written) == 1:
        return line
    return f"{head}\n    if " + ",\n       ".join(written) + ";"


def format_condition(condition: RoleCondition) -> str:
    """Return a condition as it is written in a rule."""
    mark = " *" if condition.member else ""
    match condition:
        case CredentialCondition(kind, name, arguments, by):
            return f"{kind} {name}{_arguments(arguments)}{_by(by)}{mark}"
        case FactCondition(name, arguments):
            return f"fact {name}{_arguments(arguments)}{mark}"
        case WhereCondition(selector):
            return f"where {selector_text(selector)}{mark}"


def format_privilege(privilege: RolePrivilege) -> str:
    """Return a privilege as it is written in a rule."""
    match privilege:
        case AppointPrivilege(right, appointment, arguments):
            return f"{right} {appointment}{_arguments(arguments)}"
        case NetworkPrivilege(right, owner, network):
            return f'{right} "{owner}/{network}"'
        case EventPrivilege(right, owner, types, below, attributes, forced, where, matching):
            text = f"{right} {'below ' if below else ''}{owner}/{types}{_attributes(attributes, forced)}"
            if where is not None:
                text += f" where {selector_text(where)}"
            return text + "".join(f" matching {call.name}{_arguments(call.arguments) or '()'}" for call in matching)


def selector_text(selector: Selector) -> str:
    """Return a selector as it is written in a policy: event attributes begin with a dot."""
    text = selector.text
    if EVENT not in text:
        return text
    return re.sub(
        r"""'[^']*(?:''[^']*)*'|"([^"]*(?:""[^"]*)*)\"""",
        lambda found: _dotted(found.group(1)) if (found.group(1) or "").startswith(EVENT) else found.group(),
        text,
    )


def _dotted(quoted: str) -> str:
    name = quoted.replace('""', '"').removeprefix(EVENT)
    return "." + (name if _NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"')


def _by(domain: str) -> str:
    return "" if domain == SELF else f" by {domain}"


def _parameters(parameters: tuple[RoleParameter, ...]) -> str:
    return f"({', '.join(f'{one.name}: {one.kind}' for one in parameters)})" if parameters else ""


def _arguments(arguments: tuple[RoleTerm, ...]) -> str:
    return f"({', '.join(map(format_term, arguments))})" if arguments else ""


def format_term(term: RoleTerm) -> str:
    """Return a variable, a constant, `_` or an event attribute as text."""
    match term:
        case RoleVariable(name):
            return name
        case RoleConstant(value):
            return write_value(value)
        case AnyValue():
            return "_"
        case EventAttribute(name):
            return "." + (name if _NAME.fullmatch(name) else f'"{name}"')


def _attributes(attributes: tuple[str, ...] | None, forced: tuple[tuple[str, RoleTerm], ...]) -> str:
    if attributes is None and not forced:
        return ""
    values = dict(forced)
    listed = [*values] if attributes is None else attributes
    written = [f"{_attribute(name)}{f' = {format_term(values[name])}' if name in values else ''}" for name in listed]
    return f"({', '.join((['*'] if attributes is None else []) + written)})"


def _attribute(name: str) -> str:
    return name if _NAME.fullmatch(name) else f'"{name}"'
