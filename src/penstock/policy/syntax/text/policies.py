"""Policies in the text form: read, and checked as those in XML are.

    namespace clinic {
        attribute role { category = subject id = "urn:example:role" type = string }

        policy records {
            apply deny-unless-permit
            rule doctors { permit target clause role == "doctor" }
        }
    }

What is used is declared before. Lines mean nothing, and `//` begins a comment.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.errors import MalformedError, RefusedError
from penstock.policy.combining.registry import (
    POLICY_COMBINING,
    RULE_COMBINING,
    policy_algorithm,
    rule_algorithm,
    split_priorities,
    with_priorities,
)
from penstock.policy.combining.tuples import PREFIX, DecisionTuple
from penstock.policy.language.expressions import Designator
from penstock.policy.language.policies import PolicySet, Root, RuleEffect
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.builder import (
    AssignmentNode,
    AttributeTerm,
    Builder,
    DefinitionNode,
    DutyNode,
    MatchNode,
    Place,
    PolicyNode,
    ReferenceNode,
    RuleNode,
    TargetNode,
    Term,
)
from penstock.policy.syntax.text.expressions import Declared, Expressions
from penstock.policy.syntax.text.names import (
    COMPARISONS,
    FLIPPED,
    function_id,
    one_and_only,
)
from penstock.policy.syntax.text.names import operator_function as meant_by
from penstock.policy.syntax.text.tokens import NAME, NUMBER, TEXT, PolicyToken, Words, problem, quoted

# ----------------------------------------------------------------------------------------------------------------------
# Combining algorithms in the text form: by name or id, as a decision tuple, and with priorities.
#
# apply deny-overrides
# apply tuple { P "#P > 1" D "#P < 1 and #D > 0" }
# apply deny-overrides priorities 2, 1, 1


def read_combining(words: Words, *, rules: bool) -> str:
    """Read what follows `apply`, and return the id of the algorithm. Raises `PolicyTextError`."""
    start = words.token.at
    if words.sees("tuple") and words.before("{"):
        elements = _elements(words)
        try:
            with words.at(start):
                name = DecisionTuple.of(elements).id
        except RefusedError as error:
            raise problem(error.code, error.message, words.text, start, error.hint) from None
    else:
        name = words.id("a combining algorithm")
    found = (RULE_COMBINING if rules else POLICY_COMBINING).get(name, name)
    return with_priorities(_priorities(words), found) if words.taken("priorities") else found


def _elements(words: Words) -> dict[str, str]:
    words.take()
    words.expect("{")
    found: dict[str, str] = {}
    while not words.taken("}"):
        start = words.token.at
        if words.token.kind != NAME:
            words.wrong("an element, or `}`")
        name = words.take().text
        with words.at(start):
            if name in found:
                raise MalformedError("combining.elements", f"there are two of `{name[:80]}`")
        found[name] = words.quoted()
    return found


def _priorities(words: Words) -> list[int]:
    found = []
    while True:
        sign = -1 if words.taken("-") else 1
        if words.token.kind != NUMBER or not words.token.text.isdecimal():
            words.wrong("a priority, which is an integer")
        found.append(sign * int(words.take().text))
        if not words.taken(","):
            return found


def written_combining(root: Root) -> str:
    """Return what follows `apply`. Raises `MalformedError` for an unknown algorithm."""
    known, check = (
        (POLICY_COMBINING, policy_algorithm) if isinstance(root, PolicySet) else (RULE_COMBINING, rule_algorithm)
    )
    check(root.combining)
    priorities, name = split_priorities(root.combining)
    if any(one < 0 for one in priorities) or (priorities and with_priorities(priorities, name) != root.combining):
        return quoted(root.combining)
    short = name.rpartition(":")[2]
    text = short if known.get(short) == name else _tuple_text(name) or quoted(name)
    return f"{text} priorities {', '.join(map(str, priorities))}" if priorities else text


def _tuple_text(name: str) -> str | None:
    made = DecisionTuple.of_id(name) if name.startswith(PREFIX) else None
    if made is None or made.id != name:
        return None
    inside = " ".join(f"{element} {quoted(text)}" for element, text in made.elements.items() if text)
    return f"tuple {{ {inside} }}" if inside else None


# ----------------------------------------------------------------------------------------------------------------------
# Policies in the text form: read, and checked as those in XML are.


RULE, VARIABLE = "rule", "variable"


@dataclass(slots=True)
class Document:
    """What a text holds: policies, names of attributes, and where things stand."""

    text: str
    policies: list[Root] = field(default_factory=list)
    attributes: dict[str, Designator] = field(default_factory=dict)
    #: attributes that nobody uses, and where they are declared
    unused: list[tuple[str, int]] = field(default_factory=list)
    #: rules and variables: kind, id of the policy, name; each place where one is
    places: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)


def read_document(text: str, *, limits: PolicyLimits = POLICY_LIMITS) -> Document:
    """Read all policies of a text.

    Raises `PolicyTextError` with line and column (`xacml.syntax`, `xacml.attribute`, and what reading XML raises),
    `LimitError` (`xacml.limit`).
    """
    reader = _Reader(Words(text, limits), Document(text))
    reader.declarations("", closed=False)
    reader.document.policies += map(Builder(limits, one_and_only).root, reader.policies)
    return reader.document


def read_text_policy(text: str, *, limits: PolicyLimits = POLICY_LIMITS) -> Root:
    """Read a text of one policy or policy set. Raises as `read_document` does."""
    found = read_document(text, limits=limits).policies
    if len(found) != 1:
        raise MalformedError(
            "xacml.syntax", f"the text holds {len(found)} policies, and not one", hint="put them into a policy set"
        )
    return found[0]


@dataclass(slots=True)
class _Body:
    """What has been read of a rule, a policy or a set."""

    target: TargetNode = ()
    duties: list[DutyNode] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    combining_at: Place | None = None
    condition: tuple[Place, Term] | None = None
    effect: RuleEffect | None = None
    rules: list[RuleNode] = field(default_factory=list)
    definitions: list[DefinitionNode] = field(default_factory=list)
    members: list[PolicyNode | ReferenceNode] = field(default_factory=list)


class _Reader:
    """Parses declarations from the outside to the inside into nodes."""

    def __init__(self, words: Words, document: Document) -> None:
        self.policies: list[PolicyNode] = []
        self.words = words
        self.document = document
        self.expressions = Expressions(words)

    # --- declarations -----------------------------------------------------------------------------------------------

    def declarations(self, prefix: str, *, closed: bool, depth: int = 1) -> None:
        """Read what stands in a namespace, or in the whole text."""
        words = self.words
        words.check_depth(depth)
        outside = dict(self.expressions.attributes)
        mine: list[tuple[str, Declared]] = []
        while not (words.sees("}") if closed else words.token.kind == "end"):
            if words.taken("namespace"):
                name = words.name("a name")
                words.expect("{")
                self.declarations(f"{prefix}{name}.", closed=True, depth=depth + 1)
                words.expect("}")
            elif words.taken("attribute"):
                mine.append(self._attribute({name for name, _ in mine}))
            elif words.sees("policy", "policyset"):
                self.policies.append(self._root(prefix, depth))
            else:
                words.wrong("`namespace`, `attribute`, `policy` or `policyset`")
        self.document.unused += [(name, one.at) for name, one in mine if not one.used]
        self.expressions.attributes = outside

    def _attribute(self, taken: set[str]) -> tuple[str, Declared]:
        words, token = self.words, self.words.token
        name = words.name("a name")
        if name in taken:
            raise problem("xacml.attribute", f"`{name[:80]}` is declared twice", words.text, token.at)
        declared = Declared(self._described(token), token.at)
        self.expressions.attributes[name] = declared
        self.document.attributes[name] = declared.attribute
        return name, declared

    def _described(self, token: PolicyToken) -> Designator:
        words = self.words
        said: dict[str, str] = {}
        of_type = None
        required = False
        words.expect("{")
        while not words.taken("}"):
            if words.taken("required"):
                required = True
                continue
            if not words.sees("category", "id", "type", "issuer"):
                words.wrong("`category`, `id`, `type`, `issuer`, `required` or `}`")
            key = words.take().text
            words.expect("=")
            if key == "type":
                of_type = self.expressions.of_type()
            else:
                said[key] = self.expressions.category() if key == "category" else words.quoted()
        if of_type is None or not {"category", "id"} <= said.keys():
            raise problem("xacml.attribute", "an attribute has category, id and type", words.text, token.at)
        return Designator(said["category"], said["id"], of_type, said.get("issuer"), required)

    def _id(self, prefix: str) -> str:
        words = self.words
        plain = words.token.kind == NAME and "." not in words.token.text
        name = words.id("a name")
        return f"{prefix}{name}" if plain else name

    # --- policies and sets --------------------------------------------------------------------------------------------

    def _root(self, prefix: str, depth: int) -> PolicyNode:
        words = self.words
        words.check_depth(depth)
        is_set = words.take().text == "policyset"
        token = words.token
        name = self._id(prefix)
        version = words.quoted("a version in quotes") if words.taken("version") else "1.0"
        before, self.expressions.variables = self.expressions.variables, set()
        words.expect("{")
        body = _Body()
        while not words.taken("}"):
            if is_set:
                self._in_set(body, prefix, depth)
            else:
                self._in_policy(body, name)
        self.expressions.variables = before
        if "apply" not in body.said:
            message, hint = "it does not say what it applies", "write `apply` and how"
            raise problem("xacml.combining", message, words.text, token.at, hint)
        return PolicyNode(
            words.place(token.at),
            name,
            version,
            body.said["apply"],
            body.target,
            tuple(body.rules),
            tuple(body.definitions),
            tuple(body.members) if is_set else None,
            tuple(body.duties),
            body.said.get("issuer"),
            body.said.get("description", ""),
            body.combining_at,
        )

    def _in_set(self, body: _Body, prefix: str, depth: int) -> None:
        if self.words.sees("policy", "policyset"):
            body.members.append(self._root(prefix, depth + 1))
        elif self.words.taken("reference"):
            body.members.append(self._reference(prefix))
        elif not self._common(body) and not self._apply(body, rules=False):
            self.words.wrong("`policy`, `policyset`, `reference`, `apply`, `target`, `on` or `}`")

    def _in_policy(self, body: _Body, name: str) -> None:
        if self.words.taken("rule"):
            body.rules.append(self._rule(name))
        elif self.words.taken("variable"):
            body.definitions.append(self._definition(name))
        elif not self._common(body) and not self._apply(body, rules=True):
            self.words.wrong("`rule`, `variable`, `apply`, `target`, `on` or `}`")

    def _place(self, kind: str, policy: str, name: str, at: int) -> None:
        self.document.places.setdefault((kind, policy, name), []).append(at)

    def _definition(self, policy: str) -> DefinitionNode:
        words, token = self.words, self.words.token
        name = words.id("a name")
        words.expect("=")
        found = DefinitionNode(words.place(token.at), name, self.expressions.expression())
        self.expressions.variables.add(name)
        self._place(VARIABLE, policy, name, token.at)
        return found

    def _apply(self, body: _Body, *, rules: bool) -> bool:
        words = self.words
        if not words.sees("apply"):
            return False
        self._once(body, "apply")
        body.combining_at = words.place(words.token.at)
        body.said["apply"] = read_combining(words, rules=rules)
        return True

    def _once(self, body: _Body, key: str) -> None:
        token = self.words.take()
        if key in body.said:
            raise problem("xacml.syntax", f"there are two of `{key}`", self.words.text, token.at)

    def _reference(self, prefix: str) -> ReferenceNode:
        words = self.words
        start = words.token.at
        if not words.sees("policy", "policyset"):
            words.wrong("`policy` or `policyset`")
        to_set = words.take().text == "policyset"
        name = self._id(prefix)
        wanted: dict[str, str] = {}
        while words.sees("version", "earliest", "latest"):
            key = words.take().text
            wanted[key] = words.quoted()
        versions = [wanted.get(key) for key in ("version", "earliest", "latest")]
        return ReferenceNode(words.place(start), name, to_set, *versions)

    def _rule(self, policy: str) -> RuleNode:
        words, token = self.words, self.words.token
        name = words.id("a name")
        self._place(RULE, policy, name, token.at)
        words.expect("{")
        body = _Body()
        while not words.taken("}"):
            if words.sees("permit", "deny"):
                if body.effect is not None:
                    words.wrong("one of `permit` and `deny`")
                body.effect = self._effect()
            elif words.sees("condition"):
                self._once(body, "condition")
                body.condition = self.expressions.condition()
                body.said["condition"] = ""
            elif words.sees("issuer") or not self._common(body):
                words.wrong("`permit`, `deny`, `target`, `condition`, `on` or `}`")
        if body.effect is None:
            raise problem("xacml.syntax", "a rule says `permit` or `deny`", words.text, token.at)
        duties, description = tuple(body.duties), body.said.get("description", "")
        return RuleNode(words.place(token.at), name, body.effect, body.target, body.condition, duties, description)

    def _effect(self) -> RuleEffect:
        if not self.words.sees("permit", "deny"):
            self.words.wrong("`permit` or `deny`")
        return RuleEffect.PERMIT if self.words.take().text == "permit" else RuleEffect.DENY

    def _common(self, body: _Body) -> bool:
        """Read what rules, policies and sets have in common."""
        words = self.words
        if words.sees("description", "issuer"):
            key = words.token.text
            self._once(body, key)
            body.said[key] = words.quoted()
        elif words.sees("target"):
            self._once(body, "target")
            body.target, body.said["target"] = self._target(), ""
        elif words.taken("on"):
            body.duties += self._duties(self._effect())
        else:
            return False
        return True

    # --- targets, obligations and advice ------------------------------------------------------------------------------

    def _target(self) -> TargetNode:
        found = []
        if not self.words.sees("clause"):
            self.words.wrong("`clause`")
        while self.words.taken("clause"):
            any_of = [self._all_of()]
            while self.words.taken("or"):
                any_of.append(self._all_of())
            found.append(tuple(any_of))
        return tuple(found)

    def _all_of(self) -> tuple[MatchNode, ...]:
        found = [self._match()]
        while self.words.taken("and"):
            found.append(self._match())
        return tuple(found)

    def _match(self) -> MatchNode:
        words, token = self.words, self.words.token
        if token.kind in (NAME, TEXT) and words.before("("):
            return self._called(token)
        if words.sees("select") or (token.kind == NAME and not words.sees("true", "false", "xpath")):
            attribute = self._looked_up()
            sign = self._comparison()
            value = self.expressions.literal()
            sign = FLIPPED[sign]
        else:
            value = self.expressions.literal()
            sign = self._comparison()
            attribute = self._looked_up()
        with words.at(token.at):
            return MatchNode(words.place(token.at), meant_by(sign, attribute.of).id, value, attribute)

    def _called(self, token: PolicyToken) -> MatchNode:
        words = self.words
        name = words.quoted() if token.kind == TEXT else words.take().text
        words.expect("(")
        value = self.expressions.literal()
        words.expect(",")
        attribute = self._looked_up()
        words.expect(")")
        return MatchNode(words.place(token.at), function_id(name), value, attribute)

    def _comparison(self) -> str:
        if not self.words.sees(*COMPARISONS):
            self.words.wrong(f"one of {' '.join(COMPARISONS)}")
        return self.words.take().text

    def _looked_up(self) -> AttributeTerm:
        if self.words.sees("select"):
            return self.expressions.selector()
        token = self.words.token
        return self.expressions.designator(self.words.name("an attribute"), token)

    def _duties(self, on: RuleEffect) -> Iterator[DutyNode]:
        words = self.words
        words.expect("{")
        while not words.taken("}"):
            if not words.sees("obligation", "advice"):
                words.wrong("`obligation`, `advice` or `}`")
            required = words.take().text == "obligation"
            name = words.id("a name")
            assigned = []
            if words.taken("{"):
                while not words.taken("}"):
                    assigned.append(self._assignment())
            yield DutyNode(name, on, required, tuple(assigned))

    def _assignment(self) -> AssignmentNode:
        words, start = self.words, self.words.token.at
        name = words.id("the name of an attribute, or `}`")
        category = self.expressions.category() if words.taken("category") else None
        issuer = words.quoted() if words.taken("issuer") else None
        words.expect("=")
        return AssignmentNode(words.place(start), name, self.expressions.expression(), category, issuer)
