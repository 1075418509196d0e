"""Read policies in the text form, with the same checks as policies in XML.

    namespace clinic {
        attribute role { category = subject id = "urn:example:role" type = string }

        policy records {
            apply deny-unless-permit
            rule doctors { permit target clause role == "doctor" }
        }
    }

Names are declared before they are used. Line breaks have no meaning, and `//` begins a comment. Operators:

    or            one of many                       and           all of many
    not           the opposite                      == != < <= > >= in
    + -           sums, strings joined              * / %         products, quotients, remainders

An attribute is a bag. If it is used where one value is expected, it must have exactly one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.policy.combining import (
    POLICY_COMBINING,
    PREFIX,
    RULE_COMBINING,
    DecisionTuple,
    policy_algorithm,
    rule_algorithm,
    split_priorities,
    with_priorities,
)
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    STRING,
    XPATH,
    DataType,
    Function,
    XPathExpression,
    data_type,
)
from penstock.policy.language.functions import V1, V3
from penstock.policy.language.policies import (
    HIGHER_ORDER,
    ContentSelector,
    Designator,
    PolicyLiteral,
    PolicySet,
    Root,
    RuleEffect,
    function_of,
)
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.builder import (
    ApplyNode,
    AssignmentNode,
    AttributeTerm,
    BagNode,
    Builder,
    DefinitionNode,
    DutyNode,
    MatchNode,
    OperatorNode,
    Place,
    PolicyNode,
    ReferenceNode,
    RuleNode,
    TargetNode,
    Term,
    ValueNode,
    VariableNode,
)
from penstock.policy.syntax.text.tokens import (
    CATEGORY,
    COMPARISONS,
    FLIPPED,
    MANY,
    NAME,
    NUMBER,
    TEXT,
    PolicyToken,
    Words,
    bag_function,
    function_id,
    one_and_only,
    operator_function,
    problem,
    quoted,
)
from penstock.policy.syntax.text.tokens import operator_function as meant_by

_OR, _AND, _NOT, _COMPARED, _SUM, _PRODUCT = range(1, 7)
LEVELS: Final = {
    "or": _OR, "and": _AND, "==": _COMPARED, "!=": _COMPARED, "<": _COMPARED, "<=": _COMPARED, ">": _COMPARED,
    ">=": _COMPARED, "in": _COMPARED, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT,
}  # fmt: skip
NOT_LEVEL: Final = _NOT
NOT: Final = function_of(f"{V1}not")


@dataclass(slots=True)
class Declared:
    """A declared attribute: where it was declared, and whether it is used."""

    attribute: Designator
    at: int
    used: bool = False


@dataclass(slots=True)
class Expressions:
    """Reads expressions, and resolves names."""

    words: Words
    attributes: dict[str, Declared] = field(default_factory=dict)
    #: variables of the enclosing policy that are already defined
    variables: set[str] = field(default_factory=set)

    def condition(self) -> tuple[Place, Term]:
        """Read a condition, and return it with its place."""
        return self.words.place(self.words.token.at), self.expression()

    def expression(self, level: int = _OR, depth: int = 1) -> Term:
        """Read an expression, up to the first operator with a lower precedence than `level`."""
        self.words.check_depth(depth)
        found = self._negated(depth) if level <= _NOT and self._negates() else self._operand(depth)
        grown, compared = depth, False
        signs: list[PolicyToken] = []
        others: list[Term] = []
        while self.words.sees(*LEVELS) and LEVELS[self.words.token.text] >= level:
            sign = self.words.take()
            mine = LEVELS[sign.text]
            if mine == _COMPARED and compared:
                raise problem("xacml.syntax", "comparisons cannot be chained", self.words.text, sign.at)
            compared = mine == _COMPARED
            other = self.expression(mine + 1, depth + 1)
            if not signs or sign.text != signs[-1].text or sign.text not in MANY:
                found, signs, others = self._joined(found, signs, others), [], []
                grown += 1
                self.words.check_depth(grown)
            signs.append(sign)
            others.append(other)
        return self._joined(found, signs, others)

    def _joined(self, first: Term, signs: list[PolicyToken], others: list[Term]) -> Term:
        """Return operands with the same operator between them."""
        if not signs:
            return first
        sign, places = signs[0].text, tuple(self.words.place(one.at) for one in signs)
        function = partial(operator_function, "==" if sign == "!=" else sign)
        found = OperatorNode(places, (first, *others), function, bag_last=sign == "in")
        return ApplyNode(places[0], NOT.id, (found,)) if sign == "!=" else found

    def _negates(self) -> bool:
        return self.words.sees("not")

    def _negated(self, depth: int) -> Term:
        sign = self.words.take()
        return ApplyNode(self.words.place(sign.at), NOT.id, (self.expression(_NOT, depth + 1),))

    def _operand(self, depth: int) -> Term:
        words = self.words
        token = words.token
        if words.taken("("):
            found = self.expression(_OR, depth + 1)
            words.expect(")")
            return found
        if words.sees("["):
            return self._bag(depth)
        if token.kind in (TEXT, NAME) and words.before("(") and not words.sees("variable"):
            return self._call(depth)
        if token.kind == TEXT:
            return self.literal()
        if token.kind == NUMBER or words.sees("-", "true", "false", "xpath"):
            return self.literal()
        if words.sees("select"):
            return self.selector()
        if words.taken("variable"):
            words.expect("(")
            name = words.quoted()
            words.expect(")")
            return self._variable(name, token)
        name = words.name("a value, an attribute, a variable or a function")
        return self._variable(name, token) if name in self.variables else self.designator(name, token)

    # --- values ---------------------------------------------------------------------------------------------------

    def literal(self) -> ValueNode | PolicyLiteral:
        """Read a value."""
        words = self.words
        start = words.token
        if words.taken("true", "false"):
            return PolicyLiteral(start.text == "true", BOOLEAN)
        if words.taken("xpath"):
            return self._path()
        if words.token.kind == TEXT:
            text = words.quoted()
            of_type = self.of_type() if words.taken(":") else STRING
            if of_type is XPATH:
                raise problem("xacml.value", "write a path with `xpath`", words.text, start.at)
            return ValueNode(words.place(start.at), text, of_type)
        minus = "-" if words.taken("-") else ""
        if words.token.kind != NUMBER:
            words.wrong("a value")
        number = words.take().text
        return ValueNode(words.place(start.at), minus + number, INTEGER if number.isdigit() else DOUBLE)

    def of_type(self) -> DataType:
        """Read the name of a data type."""
        start = self.words.token
        with self.words.at(start.at):
            return data_type(self.words.id("a data type"))

    def category(self) -> str:
        """Read a category, by its short name or by its id."""
        words = self.words
        if words.token.kind == TEXT:
            return words.quoted()
        if words.token.text not in CATEGORY:
            meant = did_you_mean(words.token.text, CATEGORY)
            words.wrong(f"a category in quotes or one of {', '.join(CATEGORY)}", meant)
        return CATEGORY[words.take().text]

    def _path(self) -> PolicyLiteral:
        path = self.words.quoted().strip()
        self.words.expect("of")
        category = self.category()
        version = self._said("version") or ""
        return PolicyLiteral(XPathExpression(path, category, self._prefixes(), version), XPATH)

    def _said(self, word: str) -> str | None:
        return self.words.quoted() if self.words.taken(word) else None

    def _prefixes(self) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        while self.words.taken("prefix"):
            name = self.words.id("a prefix")
            self.words.expect("=")
            found[name] = self.words.quoted()
        return tuple(sorted(found.items()))

    # --- attributes and variables -----------------------------------------------------------------------------------

    def selector(self) -> ContentSelector:
        """Read a content selector."""
        words = self.words
        words.expect("select")
        path = words.quoted().strip()
        words.expect(":")
        of_type = self.of_type()
        words.expect("of")
        category = self.category()
        required = words.taken("required")
        context = self._said("context")
        version = self._said("version") or ""
        return ContentSelector(category, path, of_type, required, context, self._prefixes(), version)

    def designator(self, name: str, token: PolicyToken) -> Designator:
        """Read the rest of a designator after the attribute's name."""
        words = self.words
        declared = self.attributes.get(name)
        if declared is None:
            declare = 'declare it before: attribute name { category = subject id = "…" type = string }'
            hint = did_you_mean(name, self.attributes, declare)
            raise problem("xacml.attribute", f"unknown name `{name[:80]}`", words.text, token.at, hint)
        declared.used = True
        meant = declared.attribute
        if not words.taken("["):
            return meant
        issuer, required = meant.issuer, meant.must_be_present
        while True:
            if words.taken("required"):
                required = True
            else:
                words.expect("issuer")
                issuer = words.quoted()
            if not words.taken(","):
                break
        words.expect("]")
        return Designator(meant.category, meant.id, meant.of, issuer, required)

    def _variable(self, name: str, token: PolicyToken) -> VariableNode:
        if name not in self.variables:
            raise problem("xacml.variable", f"no variable is called `{name[:80]}`", self.words.text, token.at)
        return VariableNode(self.words.place(token.at), name)

    # --- functions --------------------------------------------------------------------------------------------------

    def _bag(self, depth: int) -> BagNode:
        start = self.words.expect("[")
        found = self._listed("]", lambda: self.expression(_OR, depth + 1))
        if not found:
            hint = "write one of no values as string-bag()"
            raise problem("xacml.arguments", "a list must contain values", self.words.text, start.at, hint)
        return BagNode(self.words.place(start.at), tuple(found), bag_function)

    def _listed(self, end: str, read: Callable[[], Term]) -> list[Term]:
        found: list[Term] = []
        while not self.words.sees(end):
            found.append(read())
            if not self.words.taken(","):
                break
        self.words.expect(end)
        return found

    def _call(self, depth: int) -> ApplyNode:
        token = self.words.token
        name = self.words.quoted() if token.kind == TEXT else self.words.take().text
        self.words.expect("(")
        place, last = self.words.place(token.at), f"{V3}{name.rpartition(':')[2]}"
        if last in HIGHER_ORDER:
            return ApplyNode(place, last, self._function_and_more(depth))
        return ApplyNode(place, function_id(name), tuple(self._listed(")", lambda: self.expression(_OR, depth + 1))))

    def _function_and_more(self, depth: int) -> tuple[Term | Function, ...]:
        function = self.function()
        more = self._listed(")", lambda: self.expression(_OR, depth + 1)) if self.words.taken(",") else []
        if not more:
            self.words.taken(")")
        return function, *more

    def function(self) -> Function:
        """Read a function that is an argument."""
        self.words.expect("function")
        token = self.words.token
        with self.words.at(token.at):
            if token.kind not in (NAME, TEXT):
                self.words.wrong("a function")
            return function_of(function_id(self.words.quoted() if token.kind == TEXT else self.words.take().text))


# ----------------------------------------------------------------------------------------------------------------------
# Combining algorithms in the text form: by name or id, as a decision tuple, and with priorities.
#
# apply deny-overrides
# apply tuple { P "#P > 1" D "#P < 1 and #D > 0" }
# apply deny-overrides priorities 2, 1, 1


def read_combining(words: Words, *, rules: bool) -> str:
    """Read the algorithm after `apply`, and return its id. Raises `PolicyTextError`."""
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
                raise MalformedError("combining.elements", f"`{name[:80]}` is given twice")
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
    """Return the text of an algorithm after `apply`. Raises `MalformedError` for an unknown algorithm."""
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
# Policies and declarations.


RULE, VARIABLE = "rule", "variable"


@dataclass(slots=True)
class Document:
    """The content of a text: policies, names of attributes, and places."""

    text: str
    policies: list[Root] = field(default_factory=list)
    attributes: dict[str, Designator] = field(default_factory=dict)
    #: unused attributes, and where they are declared
    unused: list[tuple[str, int]] = field(default_factory=list)
    #: places of rules and variables, by kind, policy id and name
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
            "xacml.syntax",
            f"the text must contain one policy, but contains {len(found)}",
            hint="put them into a policy set",
        )
    return found[0]


@dataclass(slots=True)
class _Body:
    """The parts of a rule, a policy or a policy set that have been read."""

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
        """Read the declarations of a namespace, or of the whole text."""
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
            raise problem("xacml.attribute", "an attribute must have category, id and type", words.text, token.at)
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
            raise problem("xacml.syntax", f"`{key}` is given twice", self.words.text, token.at)

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
            raise problem("xacml.syntax", "a rule must have `permit` or `deny`", words.text, token.at)
        duties, description = tuple(body.duties), body.said.get("description", "")
        return RuleNode(words.place(token.at), name, body.effect, body.target, body.condition, duties, description)

    def _effect(self) -> RuleEffect:
        if not self.words.sees("permit", "deny"):
            self.words.wrong("`permit` or `deny`")
        return RuleEffect.PERMIT if self.words.take().text == "permit" else RuleEffect.DENY

    def _common(self, body: _Body) -> bool:
        """Read the common parts of rules, policies and policy sets."""
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
