"""Policies as Python functions, for the usual case: nothing fails, and the decision has no obligations or advice.

Each policy becomes one function of bags of values, which contains its rules. Each policy set becomes one that calls the
functions of its members; if there are many, an index finds those to call. A function is built from template lines:
everything from the policy is an argument of the function, and never in its text. A `FastPolicy` decides as
`CompiledPolicy.ask` does, or raises: `EvaluationError` for errors, and `NoFastAnswer` for obligations and rare
algorithms. Then the compiled policy has to be asked.

Attributes come only from the facts, and policies from a repository that does not change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NoReturn, TypeAlias

from penstock.errors import EvaluationError, PenstockError
from penstock.policy.combining import standard
from penstock.policy.engine.compiler import leads_where, needs_of_policy
from penstock.policy.engine.index import Index, IndexEntry, Leads, Needs, leads_of_rule, necessary, no_leads
from penstock.policy.engine.lookup import Context, Repository, is_clock
from penstock.policy.engine.programs import Program, Writer, built
from penstock.policy.language.datatypes import Value, failed
from penstock.policy.language.policies import (
    Designator,
    Duties,
    Expression,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    Target,
    versioned,
)
from penstock.policy.language.requests import Facts, Key
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.text.policy_writer import inner

P, D, NA = XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE
_NAMES: Final = {P: "P", D: "D", NA: "NA"}

Bags: TypeAlias = list[tuple[Value, ...]]
"""The values of the attributes that policies use, by position."""

Ask: TypeAlias = Callable[[Bags, datetime], XacmlDecision]
"""Returns Permit, Deny or NotApplicable. Raises `EvaluationError`, `NoFastAnswer`."""

Lines: TypeAlias = list[str]
"""Lines of a function, indented by one space per level."""

#: more children than this are found by an index
_FEW: Final = 12


class NoFastAnswer(Exception):  # noqa: N818  # nothing went wrong
    """The compiled policy has to be asked."""


class FastPolicy:
    """A policy as a function, with the positions of the attributes that it can use."""

    __slots__ = ("ask", "places")

    def __init__(self, ask: Ask, places: Mapping[Key, int]) -> None:
        self.ask = ask
        self.places = places

    @classmethod
    def of(cls, root: Root, known: Repository, *always: Key) -> "FastPolicy | None":
        """Return a policy as a function; None if it could never answer. `always` get the first positions."""
        if _combining(root.combining) is None:
            return None
        compiler = _Compiler(known, {key: place for place, key in enumerate(always)})
        return cls(compiler.unit(root, ()).ask, compiler.places)

    def decide(self, facts: Facts, now: datetime) -> XacmlDecision:
        """Return the decision. Raises `EvaluationError`, `NoFastAnswer`."""
        bags: Bags = [()] * len(self.places)
        for key, bag in facts.items():
            place = self.places.get(key)
            if place is not None:
                bags[place] = bag
        return self.ask(bags, now)


@dataclass(frozen=True, slots=True)
class _Combining:
    """A combining algorithm, if nothing fails."""

    #: the decisions after which no other child is evaluated
    decisive: frozenset[XacmlDecision]
    #: the decision if no child is decisive, and none makes a weaker decision
    otherwise: XacmlDecision

    @property
    def weak(self) -> list[XacmlDecision]:
        """The decisions that count if no child is decisive."""
        return [one for one in (P, D) if one not in self.decisive] if self.otherwise is NA else []


def _combining(name: str) -> _Combining | None:
    """Return an algorithm by its id; None for rare ones."""
    found = standard(name)
    return None if found is None or found.otherwise is None else _Combining(found.decisive, found.otherwise)


_FIRST: Final = _Combining(frozenset((P, D)), NA)


class _Unit:
    """A rule, a policy or a policy set. Call `matched` if the target is known to match."""

    __slots__ = ("ask", "block", "leads", "matched", "needs", "target")

    def __init__(self, ask: Ask, matched: Ask, target: Target) -> None:
        self.ask = ask
        self.matched = matched
        self.target = target
        self.needs = _needs(target)
        self.leads: Callable[[], Leads | None] = no_leads
        #: writes its lines inline, instead of a call
        self.block: Callable[[_Writer], Lines] | None = None


def _needs(target: Target) -> Needs:
    """Return the equalities without which something is not applicable."""
    return _without_clock(necessary(target))


def _without_clock(needs: Needs) -> Needs:
    """Leave out equalities with the current time: facts need not contain it."""
    return {one: values for one, values in needs.items() if not is_clock(one)}


class _Alone:
    """The context of an index: only bags."""

    __slots__ = ("_bags", "_places", "facts")
    names = False

    def __init__(self, facts: Facts, bags: Bags, places: Mapping[Key, int]) -> None:
        self.facts = facts
        self._bags = bags
        self._places = places

    def bag(self, wanted: Designator, /) -> tuple[Value, ...]:
        place = self._places.get(wanted.key)
        if place is None or is_clock(wanted):
            # Then all children are evaluated.
            raise failed("it is not known here")
        return self._bags[place]


class _Writer(Writer):
    """Writes code that uses only bags. Each bag is looked up once, before it is needed."""

    def __init__(self, variables: Mapping[str, Expression], compiler: "_Compiler") -> None:
        programs: dict[str, Program] = {}
        super().__init__(variables, programs)
        self._bags: dict[Designator, str] = {}
        self._told = 0
        #: whether the lines are inline, and assign to `d` instead of returning
        self._inside = False
        self._places = compiler.places
        self.names.update(P=P, D=D, NA=NA, V=NoFastAnswer, X=compiler.context)

    def bag(self, attribute: Designator) -> str:
        if is_clock(attribute):
            # Facts can contain the current time, but need not.
            self._places.setdefault(attribute.key, len(self._places))
            return super().bag(attribute)
        found = self._bags.setdefault(attribute, f"a{len(self._bags)}")
        if attribute.must_be_present:
            return f"({found} or {self.name(_missing)}({self.name(attribute)}))"
        return found

    def looked_up(self) -> Lines:
        """Return the lines that look up the bags used since the last call."""
        those = [*self._bags.items()][self._told :]
        self._told = len(self._bags)
        places = self._places
        return [f"{name} = B[{places.setdefault(one.key, len(places))}]" for one, name in those]

    def end(self, decision: XacmlDecision, involved: Set[XacmlDecision] = frozenset()) -> Lines:
        """Return the lines that end with a decision; with obligations or advice, they raise `NoFastAnswer`."""
        if decision in involved:
            return ["raise V"]
        name = _NAMES[decision]
        return [f"d = {name}", "break"] if self._inside else [f"return {name}"]

    def block(self, write: "Callable[[_Writer], Lines]") -> Lines:
        """Return the lines of a function inlined: they assign to `d` instead of returning."""
        # An earlier block may have ended before its look-ups.
        self._bags, self._told = {}, 0
        self._inside = True
        lines = write(self)
        self._inside = False
        return _under("while True:", lines)

    def function(self, lines: Lines) -> Ask:
        """Return a function of bags and the current time."""
        context = ["C = X(B, N)", "F = C.facts"] if self.uses_context else []
        memory = ["M = C.memory"] if self.uses_memory else []
        found: Ask = built("B, N", [*context, *memory, *lines], self.names)
        return found


def _under(head: str, lines: Lines) -> Lines:
    return [head, *(f" {line}" for line in lines)]


def _missing(attribute: Designator) -> NoReturn:
    raise EvaluationError("xacml.missing", f"attribute `{attribute.id[:120]}` is not there")


def _not_fast(_bags: Bags, _now: datetime) -> NoReturn:
    raise NoFastAnswer


class _Compiler:
    """Compiles the policies of one repository, each once."""

    def __init__(self, known: Repository, places: dict[Key, int]) -> None:
        self._known = known
        self._done: dict[int, tuple[Root, _Unit, frozenset[str]]] = {}
        #: ids and versions of the sets that the policy being compiled refers to
        self._sets: set[str] = set()
        self.places = places

    def context(self, bags: Bags, now: datetime) -> Context:
        """Return the context in which parts without a fast form are evaluated."""
        facts = {key: bag for key, place in self.places.items() if (bag := bags[place])}
        return Context(None, now, self._known, facts)

    def unit(self, member: Policy | PolicySet | PolicyReference, around: tuple[str, ...]) -> _Unit:
        """Compile a member of a policy set."""
        match member:
            case Policy():
                return self._policy(member)
            case PolicySet():
                return self._set(member, (*around, versioned(member)))
            case PolicyReference():
                return self._referred(member, around)

    def _referred(self, reference: PolicyReference, around: tuple[str, ...]) -> _Unit:
        try:
            found = self._known.policy(reference)
        except PenstockError:
            return _Unit(_not_fast, _not_fast, ())
        if reference.to_set:
            self._sets.add(versioned(found))
        if reference.to_set and versioned(found) in around:
            return _Unit(_not_fast, _not_fast, ())
        if id(found) not in self._done:
            outside, self._sets = self._sets, set()
            self._done[id(found)] = found, self.unit(found, around), frozenset(self._sets)
            self._sets = outside
        _, unit, sets = self._done[id(found)]
        self._sets |= sets
        # It may have been compiled where it was not part of a cycle.
        return unit if sets.isdisjoint(around) else _Unit(_not_fast, _not_fast, ())

    def _place(self, policy: Policy) -> None:
        """Give a position to each attribute that variables and the plain evaluator use."""
        conditions = [rule.condition for rule in policy.rules if rule.condition is not None]
        for one in inner([*conditions, *policy.variables.values()]):
            if isinstance(one, Designator):
                self.places.setdefault(one.key, len(self.places))

    def _policy(self, policy: Policy) -> _Unit:
        combining, involved = _combining(policy.combining), _involved(policy.duties)
        if combining is None:
            return self._made(policy.target, {}, lambda _: ["raise V"])
        self._place(policy)
        if len(policy.rules) <= _FEW:
            write = partial(_rules, policy.rules, combining, involved)
            unit = self._made(policy.target, policy.variables, write)
            unit.block = None if policy.variables else partial(_lines, policy.target, write)
            needs = [_needs(rule.target) for rule in policy.rules]
        else:
            rules = [self._rule(rule, policy) for rule in policy.rules]
            unit = self._many(policy, rules, combining)
            needs = [rule.needs for rule in rules]
        unit.needs = _without_clock(needs_of_policy(policy, needs))
        unit.leads = leads_where(policy)
        return unit

    def _rule(self, rule: Rule, policy: Policy) -> _Unit:
        unit = self._made(
            rule.target,
            policy.variables,
            partial(_rules, [_untargeted(rule)], _FIRST, frozenset()),
        )
        unit.leads = partial(leads_of_rule, rule, policy.variables)
        return unit

    def _set(self, policies: PolicySet, around: tuple[str, ...]) -> _Unit:
        combining, involved = _combining(policies.combining), _involved(policies.duties)
        if combining is None:
            return self._made(policies.target, {}, lambda _: ["raise V"])
        members = [self.unit(one, around) for one in policies.members]
        if len(members) > _FEW:
            return self._many(policies, members, combining)
        return self._made(policies.target, {}, partial(_members, members, combining, involved))

    def _many(self, root: Root, members: Sequence[_Unit], combining: _Combining) -> _Unit:
        many, involved = _Many(members, combining, self.places), _involved(root.duties)

        def write(to: _Writer) -> Lines:
            lines = [f"d = {to.name(many)}(B, N)"]
            for decision in (P, D):
                lines += _under(f"if d is {_NAMES[decision]}:", to.end(decision, involved))
            return lines + to.end(NA)

        return self._made(root.target, {}, write)

    def _made(self, target: Target, variables: Mapping[str, Expression], write: Callable[[_Writer], Lines]) -> _Unit:
        """Return a unit whose functions have the lines of `write`; one of them tests the target first."""
        inner, outer = _Writer(variables, self), _Writer(variables, self)
        matched = inner.function(_lines((), write, inner))
        ask = outer.function(_lines(target, write, outer)) if target else matched
        return _Unit(ask, matched, target)


def _lines(target: Target, write: Callable[[_Writer], Lines], to: _Writer) -> Lines:
    """Return the lines of a function: look-ups, the target, and the lines of `write`."""
    before: Lines = []
    if target:
        test = to.target(target)
        before = [*to.looked_up(), *_under(f"if not ({test}):", to.end(NA))]
    body = write(to)
    return [*before, *to.looked_up(), *body]


def _involved(duties: Duties) -> frozenset[XacmlDecision]:
    """Return the decisions that have obligations or advice."""
    return frozenset(XacmlDecision.of(one.on) for one in (*duties.obligations, *duties.advice))


def _untargeted(rule: Rule) -> Rule:
    return Rule(rule.id, rule.effect, (), rule.condition, rule.duties)


def _rules(rules: Sequence[Rule], combining: _Combining, involved: Set[XacmlDecision], to: _Writer) -> Lines:
    """Write the rules of a policy: decisive ones first, the others only if they can count."""
    lines: Lines = []
    for rule in _in_turn(rules, combining):
        decision = XacmlDecision.of(rule.effect)
        end = to.end(decision, involved)
        if _asks_more(rule):
            end = ["raise V"]
        elif decision is combining.otherwise:
            # The rule would change nothing.
            continue
        tests = [f"({to.target(rule.target)})"] if rule.target else []
        if rule.condition is not None:
            tests.append(to.expression(rule.condition))
        lines += _under(f"if {' and '.join(tests) or 'True'}:", end)
    return lines + to.end(combining.otherwise, involved)


def _in_turn(rules: Sequence[Rule], combining: _Combining) -> Iterator[Rule]:
    if combining.decisive >= {P, D}:
        yield from rules
        return
    strong = RuleEffect.DENY if D in combining.decisive else RuleEffect.PERMIT
    yield from (rule for rule in rules if rule.effect is strong)
    # For the weaker decision, all applicable rules contribute obligations and advice.
    weak = [rule for rule in rules if rule.effect is not strong]
    yield from sorted(weak, key=lambda rule: not _asks_more(rule))


def _asks_more(rule: Rule) -> bool:
    """Return whether the rule's effect has obligations or advice; those of the other effect never count."""
    return any(one.on is rule.effect for one in (*rule.duties.obligations, *rule.duties.advice))


def _members(members: Sequence[_Unit], combining: _Combining, involved: Set[XacmlDecision], to: _Writer) -> Lines:
    """Write the members of a policy set."""
    weak = combining.weak
    lines = ["s = NA"] if weak else []
    for member in members:
        lines += [f"d = {to.name(member.ask)}(B, N)"] if member.block is None else to.block(member.block)
        for decision in (P, D):
            if decision in combining.decisive:
                lines += _under(f"if d is {_NAMES[decision]}:", to.end(decision, involved))
        for decision in weak:
            lines += _under(f"if d is {_NAMES[decision]}:", [f"s = {_NAMES[decision]}"])
    for decision in weak:
        lines += _under(f"if s is {_NAMES[decision]}:", to.end(decision, involved))
    return lines + to.end(combining.otherwise, involved)


class _Many:
    """Many children, of which an index finds the few to evaluate."""

    __slots__ = ("_all", "_asks", "_index", "_otherwise", "_places", "_strong")

    def __init__(self, children: Sequence[_Unit], combining: _Combining, places: dict[Key, int]) -> None:
        self._index = Index.of(
            [IndexEntry(child, child.target, child.needs, child.target, child.leads) for child in children],
            _target_known,
        )
        keys = {attribute.key for child in children for attribute in child.needs}
        #: positions of all attributes, and of those that the index always needs
        self._all = places
        self._places = [(key, places.setdefault(key, len(places))) for key in keys]
        self._asks = [child.ask for child in children]
        self._otherwise = combining.otherwise
        self._strong = combining.decisive

    def __call__(self, bags: Bags, now: datetime) -> XacmlDecision:
        said, strong = self._otherwise, self._strong
        if self._index is None:
            asks = self._asks
        else:
            facts = {key: bags[place] for key, place in self._places}
            asks = [one.ask for one in self._index.candidates(_Alone(facts, bags, self._all))]
        for ask in asks:
            decision = ask(bags, now)
            if decision in strong:
                return decision
            if decision is not NA:
                said = decision
        return said


def _target_known(unit: _Unit) -> _Unit:
    return _Unit(unit.matched, unit.matched, unit.target)
