"""Recycling: answer questions from the answers that one decision point gave before (paper 3, section 3.4.2).

A state machine without a clock or a network. Its rules, where "answer" means a cached answer of the same point that has
not ended, and whose policies have not changed since in a way that affects it:

1. *Precise.* The same question has the same answer.
2. *Roles.* Only where the point declares that its policy is a union over the roles in an attribute of the subject. A
   Permit for the roles R and the permission p (action and resource) says that a role in R has p. A Deny says that none
   has. The remainder M of a permitted R is R without the denied roles. A question whose roles contain a non-empty M is
   permitted, one whose roles are all denied is denied. An empty M is a contradiction.
3. *Labels.* Only where the point declares Bell–LaPadula with fixed labels. A permitted read says s ≥ o, a permitted
   append o ≥ s, a permitted write both. A denied read says ¬(s ≥ o), a denied append ¬(o ≥ s), a denied write that not
   both are true. A path of ≥ permits. From ¬(x ≥ y), x ≥ x' and y' ≥ y follows ¬(x' ≥ y'), which denies. A path against
   a negation is a contradiction. Where an answer has a discretionary part too, only the mandatory part is learnt, and
   it can only deny.
4. *Sets.* An answer that says for which requests it holds answers each request that its selector matches.

Only Permit and Deny without obligations and advice are learnt. After a contradiction all answers that it is about are
dropped, nothing is learnt, and the caller raises an alarm and asks the point.

Everything is bounded in entries and bytes (`AuthorityLimits.recycling_*`). Answers that were not used give way first.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from penstock.authority.decisions.messages import AccessAnswer, AnswerEffect, LabelRecycling, RoleRecycling
from penstock.authority.decisions.questions import (
    KEY_ACTION_ID,
    KEY_RESOURCE_ID,
    KEY_RESOURCE_TYPE,
    KEY_SUBJECT_ID,
    KEY_SUBJECT_TYPE,
    RESERVED,
    TYPES,
    AccessQuestion,
    Entity,
    Properties,
    facts_of,
)
from penstock.authority.decisions.updates import PolicyChange, PolicyUpdate, ResourceChange
from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.errors import PenstockError
from penstock.policy.language import requests
from penstock.policy.language.datatypes import Value
from penstock.policy.language.requests import Key
from penstock.policy.residual.request_attributes import (
    BagReader,
    bound_values,
    compile_request_set,
    compile_set_over,
)
from penstock.selector import Selector, conjunction, conjuncts, parse

PERMIT: Final = AnswerEffect.PERMIT
DENY: Final = AnswerEffect.DENY
#: bytes that an entry takes beside its texts, and how much more a compiled selector takes than its text
_ENTRY_BYTES: Final = 2_000
_COMPILED: Final = 16
#: declarations of labels, and combinations of attributes that sets bind to values
_GRAPHS: Final = 16
_SHAPES: Final = 16


class RecyclingRule(StrEnum):
    """The rule by which a question was answered."""

    PRECISE = "precise"
    REMAINDER = "remainder"
    DENIED_ROLES = "denied-roles"
    PATH = "path"
    NEGATION = "negation"
    UNEQUAL = "unequal"
    SET = "set"


class CachedAnswer(NamedTuple):
    """A question and the answer that the decision point gave to it."""

    question: AccessQuestion
    answer: AccessAnswer


Premises: TypeAlias = tuple[tuple[CachedAnswer, ...], tuple[str, ...]]


class Recycled(Struct):
    """An answer that was not asked for: by which rule it follows from which cached answers.

    The answers are worked out when they are looked at, from what was known when the question was answered.
    """

    effect: AnswerEffect
    rule: RecyclingRule
    _find: Callable[..., Premises]
    _known: tuple[object, ...]
    _found: Premises | None = None

    @property
    def premises(self) -> tuple[CachedAnswer, ...]:
        """The cached answers from which it follows."""
        return self._look()[0]

    @property
    def over(self) -> tuple[str, ...]:
        """The roles of the remainder or the denied roles; the subjects and objects along paths."""
        return self._look()[1]

    def _look(self) -> Premises:
        if self._found is None:
            self._found = self._find(*self._known)
        return self._found


def _itself(cached: CachedAnswer) -> Premises:
    return (cached,), ()


class Learning(NamedTuple):
    """What became of an answer: whether it was kept, why not, and how many were dropped by a contradiction."""

    kept: bool
    why: str = ""
    #: the answers that contradict each other, the new one last
    contradiction: tuple[CachedAnswer, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """How many answers a change dropped and left. `lost` says that it did not follow the last known revision."""

    dropped: int
    kept: int
    lost: bool = False


@dataclass(slots=True, eq=False)
class _Entry:
    """A cached answer, and where it is used."""

    number: int
    cached: CachedAnswer
    recycled: Recycled
    until: float
    cost: int
    permission: "_Permission | None" = None
    roles: frozenset[str] = frozenset()
    graph: "_Graph | None" = None
    request_set: "_RequestSet | None" = None
    #: used since it was last considered for eviction
    used: bool = False

    @property
    def effect(self) -> AnswerEffect:
        return self.recycled.effect

    @property
    def was_used(self) -> bool:
        """Whether it was used, alone, with others about the same permission, or for its set."""
        return (
            self.used
            or (self.permission is not None and self.permission.used)
            or (self.request_set is not None and self.request_set.used)
        )


class _ContradictionError(Exception):
    """Raised with the entries that contradict the new one; caught in this module."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self.entries = tuple(entries)


PermissionKey: TypeAlias = tuple[str, ...]


class Recycler:
    """The cached answers of one decision point; see the module.

    `now` is in seconds since 1970, and does not go back. The caller checks whether the point may decide about the
    resource of a question: an answer that holds for a set of requests does not extend the point's right.
    """

    def __init__(self, limits: AuthorityLimits = AUTHORITY_LIMITS) -> None:
        self._limits = limits
        #: the revision of each policy
        self._heads: dict[str, str] = {}
        self._numbers = 0
        self._bytes = 0
        #: the oldest first
        self._entries: dict[int, _Entry] = {}
        self._precise: dict[str, _Entry] = {}
        self._permissions: dict[PermissionKey, _Permission] = {}
        self._graphs: dict[tuple[frozenset[str], frozenset[str], frozenset[str]], _Graph] = {}
        self._sets = _SetIndex(limits.recycling_scan)
        #: when entries end, the first first; may contain entries that were dropped
        self._ends: list[tuple[float, int]] = []
        self._soonest = float("inf")

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """About how many bytes the entries take."""
        # Six sets of nodes for each node, with a bit for each node.
        return self._bytes + sum(graph.size * graph.size for graph in self._graphs.values())

    def cached(self) -> Iterator[CachedAnswer]:
        """Yield the cached answers, the oldest first."""
        return (entry.cached for entry in self._entries.values())

    # --- answering ----------------------------------------------------------------------------------------------------

    def answer(self, question: AccessQuestion, now: float) -> Recycled | None:
        """Return the answer that follows from cached answers, or None if the decision point must be asked."""
        if now >= self._soonest:
            self._expire(now)
        entry = self._precise.get(question.text)
        if entry is not None:
            entry.used = True
            return entry.recycled
        if not _is_plain(question):
            return None
        if self._permissions:
            permission = self._permissions.get(_permission_key(question))
            if permission is not None:
                found = permission.answer(question)
                if found is not None:
                    return found
        if self._graphs:
            for graph in self._graphs.values():
                found = graph.answer(question)
                if found is not None:
                    return found
        return self._sets.answer(question) if self._sets.shapes else None

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(self, question: AccessQuestion, answer: AccessAnswer, now: float) -> Learning:
        """Keep an answer that was verified. A contradiction drops what it is about, and then nothing is kept."""
        why = self._refuse(question, answer, now)
        if why:
            return Learning(False, why)
        cached = CachedAnswer(question, answer)
        known = self.answer(question, now)
        if known is not None and known.effect is not answer.effect:
            # Asked although it was known, and the point says otherwise: a declaration or a set is not true.
            return self._contradicted(known.premises, cached)
        self._drop_all([self._precise[question.text]] if question.text in self._precise else [])
        entry = self._entry(cached)
        if entry.cost > self._limits.recycling_bytes:
            return Learning(False, "it is too large")
        self._make_room(entry.cost)
        try:
            self._classify(entry)
        except _ContradictionError as error:
            return self._contradicted([one.cached for one in error.entries], cached)
        self._entries[entry.number] = self._precise[question.text] = entry
        self._bytes += entry.cost
        heapq.heappush(self._ends, (entry.until, entry.number))
        self._soonest = self._ends[0][0]
        return Learning(True)

    def _refuse(self, question: AccessQuestion, answer: AccessAnswer, now: float) -> str:
        """Return why an answer is not learnt; empty if it is."""
        if answer.effect not in (PERMIT, DENY):
            return f"it is {answer.effect}"
        if answer.obligations or answer.advice:
            return "it has obligations or advice"
        if answer.question != question.digest:
            return "it is the answer to another question"
        if now >= answer.until.timestamp():
            return "it has ended"
        if not answer.rests_on:
            return "it names no policy"
        if any(self._heads.get(policy.id) != policy.revision for policy in answer.rests_on):
            return "it rests on another revision than the last known one"
        return ""

    def _entry(self, cached: CachedAnswer) -> _Entry:
        question, answer = cached
        self._numbers += 1
        cost = _ENTRY_BYTES + 4 * len(question.text) + _COMPILED * len(answer.holds_for or "")
        cost += sum(len(policy.id) + len(policy.revision) for policy in answer.rests_on)
        recycled = Recycled(answer.effect, RecyclingRule.PRECISE, _itself, (cached,))
        return _Entry(self._numbers, cached, recycled, answer.until.timestamp(), cost)

    def _classify(self, entry: _Entry) -> None:
        """Learn what an answer says about other questions. Raises `_ContradictionError`."""
        question, answer = entry.cached
        match answer.recycling if _is_plain(question) else None:
            case RoleRecycling(attribute):
                roles = _roles(question, attribute)
                if roles is not None:
                    key = _permission_key(question)
                    permission = self._permissions.get(key)
                    if permission is None or permission.attribute != attribute:
                        # Declared differently than before: what was learnt may not be mixed with it.
                        if permission is not None:
                            self._drop_all(permission.entries())
                        permission = self._permissions[key] = _Permission(key, attribute)
                    entry.permission, entry.roles = permission, roles
                    permission.add(entry)
            case LabelRecycling() as labels:
                mandatory = labels.mandatory or answer.effect
                if answer.effect is PERMIT and mandatory is DENY:
                    raise _ContradictionError(())
                names = (labels.read, labels.append, labels.write)
                graph = self._graphs.get(names)
                if graph is None and len(self._graphs) < _GRAPHS:
                    graph = self._graphs[names] = _Graph(*names)
                if graph is not None and question.action.id in graph.modes:
                    if graph.size > self._limits.recycling_labels - 2:
                        self._drop_all(graph.oldest())
                        self._graphs[names] = graph
                    entry.graph = graph
                    graph.add(entry)
        if answer.holds_for is not None and _is_plain(question):
            entry.request_set = self._sets.add(entry, answer.holds_for)

    def _contradicted(self, premises: Sequence[CachedAnswer], cached: CachedAnswer) -> Learning:
        """Drop everything that takes part in a contradiction: its permissions' answers, its graphs, its sets."""
        dropped: dict[int, _Entry] = {}
        for premise in premises:
            entry = self._precise.get(premise.question.text)
            if entry is None:
                continue
            dropped[entry.number] = entry
            if entry.permission is not None:
                dropped.update((one.number, one) for one in entry.permission.entries())
            if entry.graph is not None:
                dropped.update((one.number, one) for one in entry.graph.entries())
        self._drop_all(dropped.values())
        return Learning(False, "it contradicts cached answers", (*premises, cached))

    # --- changes of policies ------------------------------------------------------------------------------------------

    def follow(self, revisions: Mapping[str, str]) -> ChangeReport:
        """Take these as the current revisions of the point's policies. If they are news, drop everything."""
        if revisions == self._heads:
            return ChangeReport(0, len(self._entries))
        report = ChangeReport(len(self._entries), 0, lost=bool(self._entries))
        self.clear()
        self._heads = dict(revisions)
        return report

    def change(self, update: PolicyUpdate) -> ChangeReport:
        """Drop exactly what a change of a policy affects, and carry the rest over to the new revision.

        An update of another revision than the last known one drops everything.
        """
        lost = self._heads.get(update.policy) != update.before
        if update.after is None:
            self._heads.pop(update.policy, None)
        else:
            self._heads[update.policy] = update.after
        affected = [
            entry
            for entry in self._entries.values()
            if lost or any(_affects(change, entry) for change in update.changes)
        ]
        self._drop_all(affected)
        return ChangeReport(len(affected), len(self._entries), lost)

    def clear(self) -> None:
        """Forget all answers and revisions."""
        self._heads = {}
        self._drop_all(list(self._entries.values()))
        self._ends, self._soonest = [], float("inf")

    # --- bounds -------------------------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        ended = []
        while self._ends and self._ends[0][0] <= now:
            entry = self._entries.get(heapq.heappop(self._ends)[1])
            if entry is not None:
                ended.append(entry)
        for graph in {entry.graph for entry in ended if entry.graph is not None}:
            # Its paths are computed again: do it for the next ones too, not one by one.
            ended += graph.soonest()
        self._drop_all({entry.number: entry for entry in ended}.values())
        self._soonest = self._ends[0][0] if self._ends else float("inf")

    def _make_room(self, cost: int) -> None:
        """Drop an eighth of the entries when there is no room: the oldest that were not used since the last time."""
        while len(self._entries) >= self._limits.recycling_entries or self.bytes + cost > self._limits.recycling_bytes:
            wanted = len(self._entries) // 8 + 1
            victims: list[_Entry] = []
            for entry in list(self._entries.values()):
                if entry.was_used:
                    entry.used = False
                    if entry.request_set is not None:
                        entry.request_set.used = False
                    self._entries[entry.number] = self._entries.pop(entry.number)
                else:
                    victims.append(entry)
                if len(victims) == wanted:
                    break
            for permission in self._permissions.values():
                permission.used = False
            self._drop_all(victims)
        if len(self._ends) > 2 * len(self._entries) + 64:
            self._ends = [(entry.until, entry.number) for entry in self._entries.values()]
            heapq.heapify(self._ends)

    def _drop_all(self, entries: Iterable[_Entry]) -> None:
        permissions, graphs = set(), set()
        for entry in entries:
            if self._entries.pop(entry.number, None) is None:
                continue
            self._bytes -= entry.cost
            if self._precise.get(entry.cached.question.text) is entry:
                del self._precise[entry.cached.question.text]
            if entry.permission is not None:
                entry.permission.remove(entry)
                permissions.add(entry.permission)
            if entry.graph is not None:
                entry.graph.remove(entry)
                graphs.add(entry.graph)
            if entry.request_set is not None:
                self._sets.remove(entry.request_set)
        for permission in permissions:
            permission.recompute()
            if not permission and self._permissions.get(permission.key) is permission:
                del self._permissions[permission.key]
        for graph in graphs:
            graph.recompute()
            if not graph.size:
                del self._graphs[graph.names]


# ----------------------------------------------------------------------------------------------------------------------
# Roles.


def _is_plain(question: AccessQuestion) -> bool:
    """Return whether all properties are plain values or lists. For others it takes `facts_of` to say what they mean."""
    for name, value in question.subject.properties.items():
        if type(value) is dict or name in RESERVED:
            return False
    if question.context or question.resource.properties or question.action.properties:
        for properties in (question.action.properties, question.resource.properties, question.context):
            for name, value in properties.items():
                if type(value) is dict or name in RESERVED:
                    return False
    return True


def _roles(question: AccessQuestion, attribute: str) -> frozenset[str] | None:
    """Return the roles in an attribute of the subject; None if it does not contain roles."""
    found = question.subject.properties.get(attribute)
    if type(found) is list:
        for role in found:
            if type(role) is not str:
                return None
        return frozenset(found)  # type: ignore[arg-type]  # strings, as the line before says
    return frozenset((found,)) if type(found) is str else None


def _permission_key(question: AccessQuestion) -> PermissionKey:
    """Return the action and the resource, with their properties where they have any."""
    action, resource = question.action, question.resource
    if action.properties or resource.properties:
        bare = AccessQuestion(_NOBODY, action, resource)
        return (action.id, resource.type, resource.id, bare.text)
    return (action.id, resource.type, resource.id)


_NOBODY: Final = Entity("-", "-")


class _Permission:
    """What is known about the roles that have one permission."""

    __slots__ = ("_allows", "_alone", "_denials", "_denied", "_remainders", "attribute", "key", "used")

    def __init__(self, key: PermissionKey, attribute: str) -> None:
        self.key = key
        self.attribute = attribute
        #: used since it was last considered for eviction
        self.used = False
        self._allows: dict[int, _Entry] = {}
        self._denials: dict[int, _Entry] = {}
        #: of each denied role an answer that denies it
        self._denied: dict[str, _Entry] = {}
        #: each role that is a remainder by itself
        self._alone: dict[str, Recycled] = {}
        #: each remainder of several roles under one of them
        self._remainders: dict[str, list[tuple[frozenset[str], Recycled]]] = {}

    def __bool__(self) -> bool:
        return bool(self._allows or self._denials)

    def entries(self) -> list[_Entry]:
        """Return all answers about the permission."""
        return [*self._allows.values(), *self._denials.values()]

    def answer(self, question: AccessQuestion) -> Recycled | None:
        """Return the answer to a question about this permission."""
        roles: Any = question.subject.properties.get(self.attribute)
        if type(roles) is not list:
            if type(roles) is not str:
                return None
            roles = [roles]
        denied = self._denied
        try:
            # What is not a text is not a role that is known.
            for role in roles:
                if role not in denied:
                    return self._permit(roles)
        except TypeError:
            return None
        if not roles:
            return None
        self.used = True
        return Recycled(DENY, _DENIED_ROLES, _denials, (denied, roles))

    def _permit(self, roles: list[str]) -> Recycled | None:
        alone, remainders = self._alone, self._remainders
        for role in roles:
            found = alone.get(role)
            if found is not None:
                self.used = True
                return found
        if remainders:
            given = frozenset(roles)
            for role in given:
                for remainder, recycled in remainders.get(role, ()):
                    if remainder <= given:
                        self.used = True
                        return recycled
        return None

    def add(self, entry: _Entry) -> None:
        """Learn an answer. Raises `_ContradictionError`, after which all answers are to be removed."""
        entries = self.entries()
        try:
            if entry.effect is PERMIT:
                self._allow(entry)
                self._allows[entry.number] = entry
            else:
                self._denials[entry.number] = entry
                if not self._denied.keys() >= entry.roles:
                    self.recompute()
        except _ContradictionError:
            self._denials.pop(entry.number, None)
            raise _ContradictionError(entries) from None

    def remove(self, entry: _Entry) -> None:
        """Forget an answer; `recompute` must follow."""
        self._allows.pop(entry.number, None)
        self._denials.pop(entry.number, None)

    def recompute(self) -> None:
        """Compute the denied roles and the remainders. Raises `_ContradictionError`."""
        # Derivations that were given go on with the old ones.
        self._denied = {role: entry for entry in self._denials.values() for role in entry.roles}
        self._alone, self._remainders = {}, {}
        for entry in self._allows.values():
            self._allow(entry)

    def _allow(self, entry: _Entry) -> None:
        remainder = entry.roles - self._denied.keys()
        if not remainder:
            raise _ContradictionError(())
        recycled = Recycled(PERMIT, RecyclingRule.REMAINDER, _remainder, (entry, self._denied, remainder))
        if len(remainder) == 1:
            (role,) = remainder
            self._alone.setdefault(role, recycled)
            return
        place = self._remainders.setdefault(min(remainder), [])
        if not any(other <= remainder for other, _ in place):
            place.append((remainder, recycled))
            # The smallest first: it answers most questions. A long list would take longer than asking.
            place.sort(key=lambda one: len(one[0]))
            del place[_REMAINDERS:]


_DENIED_ROLES: Final = RecyclingRule.DENIED_ROLES
#: remainders that are kept under one role
_REMAINDERS: Final = 64


def _denials(denied: Mapping[str, _Entry], roles: Iterable[str]) -> Premises:
    """Return the answers that deny these roles."""
    over = sorted({*roles})
    found = {denied[role].number: denied[role].cached for role in over}
    return tuple(found.values()), tuple(over)


def _remainder(entry: _Entry, denied: Mapping[str, _Entry], remainder: frozenset[str]) -> Premises:
    """Return the Permit for a role set, and the answers that deny all of its roles but the remainder."""
    rest, _ = _denials(denied, entry.roles - remainder)
    return (entry.cached, *rest), tuple(sorted(remainder))


# ----------------------------------------------------------------------------------------------------------------------
# Labels. Nodes are subjects and objects, numbered from 0. Sets of nodes are integers with a bit for each node, so that
# a question takes a few operations on them. `_below[x]` is what x is known to be ≥, and `_above[y]` what is known to be
# ≥ y, both with the node itself. `_denied[x]` has each y for which ¬(z ≥ y) is known with a z ≥ x: then ¬(x ≥ y') for
# each y' ≥ y.


class _Mode(StrEnum):
    READ = "read"
    APPEND = "append"
    WRITE = "write"


#: members of an enumeration take longer to look up than globals
_APPEND: Final = _Mode.APPEND
_WRITE: Final = _Mode.WRITE
_FINISHED: Final = 1 << 62


class _Order:
    """An order of labels as far as answers show it. Answers can be added; to remove some, a new one is made."""

    def __init__(self) -> None:
        #: by type and id
        self.subjects: dict[str, dict[str, int]] = {}
        self.objects: dict[str, dict[str, int]] = {}
        self.texts: list[str] = []
        self.below: list[int] = []
        self.above: list[int] = []
        #: where answers say so themselves
        self.direct: list[int] = []
        self.negated_by: list[int] = []
        self.denied: list[int] = []
        #: nodes with labels that are known to differ from the node's
        self.unequal: list[int] = []
        self.with_unequal = 0
        #: objects with a discretionary part
        self.discretionary = 0
        self._edges: dict[tuple[int, int], _Entry] = {}
        self._negations: dict[tuple[int, int], _Entry] = {}
        self._unequals: dict[tuple[int, int], _Entry] = {}
        #: for a node, the nodes whose labels differ from an equal one
        self._unequal_to: dict[int, int] = {}

    @classmethod
    def of(cls, answers: Iterable[tuple[_Entry, "_Mode"]]) -> "_Order":
        """Return the order of answers that do not contradict each other: as if each was learnt, but all together."""
        order = cls()
        for entry, mode in answers:
            order._say(entry, mode, order._greater_here, order._not_greater_here)
        order._close()
        return order

    # --- learning ---

    def learn(self, entry: _Entry, mode: "_Mode") -> None:
        """Learn an answer. Raises `_ContradictionError`, after which the order is not to be used."""
        self._say(entry, mode, self._greater, self._not_greater)

    def _say(
        self,
        entry: _Entry,
        mode: "_Mode",
        greater: Callable[[int, int, _Entry], None],
        not_greater: Callable[[int, int, _Entry], None],
    ) -> None:
        question, answer = entry.cached
        subject = self._node(self.subjects, question.subject)
        item = self._node(self.objects, question.resource)
        labels = answer.recycling
        mandatory = labels.mandatory if isinstance(labels, LabelRecycling) else None
        if mandatory is not None:
            self.discretionary |= 1 << item
        permitted = (mandatory or answer.effect) is PERMIT
        if mode is _WRITE and not permitted:
            self._differing(subject, item, entry)
            return
        say = greater if permitted else not_greater
        if mode is not _APPEND:
            say(subject, item, entry)
        if mode is not _Mode.READ:
            say(item, subject, entry)

    def _node(self, numbers: dict[str, dict[str, int]], entity: Entity) -> int:
        of_type = numbers.setdefault(entity.type, {})
        number = of_type.get(entity.id)
        if number is None:
            number = of_type[entity.id] = len(self.texts)
            self.texts.append(f"{entity.type} {entity.id}")
            for itself in (self.below, self.above):
                itself.append(1 << number)
            for nothing in (self.direct, self.negated_by, self.denied, self.unequal):
                nothing.append(0)
        return number

    def _greater_here(self, x: int, y: int, entry: _Entry) -> None:
        self._edges.setdefault((x, y), entry)
        self.direct[x] |= 1 << y

    def _greater(self, x: int, y: int, entry: _Entry) -> None:
        self._greater_here(x, y, entry)
        below, above, denied = self.below, self.above, self.denied
        if below[x] >> y & 1:
            return
        if denied[x] & below[y]:
            raise _ContradictionError(())
        self._unequal_to.clear()
        more_below, more_above, more_denied = below[y], above[x], denied[x]
        for node in _nodes(more_above):
            below[node] |= more_below
        for node in _nodes(more_below):
            above[node] |= more_above
            denied[node] |= more_denied
        # A denied write says that not both are true: where one is now, the other is not.
        for node in _nodes(more_above & self.with_unequal):
            for other in _nodes(self.unequal[node] & more_below):
                self._not_greater(other, node, None)

    def _not_greater_here(self, x: int, y: int, entry: _Entry | None) -> None:
        if entry is not None:
            self._negations.setdefault((x, y), entry)
        self.negated_by[y] |= 1 << x

    def _not_greater(self, x: int, y: int, entry: _Entry | None) -> None:
        if self.below[x] >> y & 1:
            raise _ContradictionError(())
        self._not_greater_here(x, y, entry)
        for node in _nodes(self.below[x]):
            self.denied[node] |= 1 << y

    def _differing(self, x: int, y: int, entry: _Entry) -> None:
        self._unequals.setdefault((min(x, y), max(x, y)), entry)
        self.unequal[x] |= 1 << y
        self.unequal[y] |= 1 << x
        self.with_unequal |= 1 << x | 1 << y
        self._unequal_to.clear()
        for high, low in ((x, y), (y, x)):
            if self.below[high] >> low & 1:
                self._not_greater(low, high, None)

    def _close(self) -> None:
        """Compute what follows from what answers say themselves."""
        classes = self._classes()
        class_of = {node: number for number, members in enumerate(classes) for node in members}
        after = [
            {class_of[other] for node in members for other in _nodes(self.direct[node])} - {number}
            for number, members in enumerate(classes)
        ]
        same = [sum(1 << node for node in members) for members in classes]
        # A class comes after all classes below it.
        below, above = same[:], same[:]
        for number, others in enumerate(after):
            for other in others:
                below[number] |= below[other]
        for number in reversed(range(len(classes))):
            for other in after[number]:
                above[other] |= above[number]
        for number, members in enumerate(classes):
            for node in members:
                self.below[node], self.above[node] = below[number], above[number]
        for pair in self._unequals:
            for high, low in (pair, pair[::-1]):
                if self.below[high] >> low & 1:
                    self._not_greater_here(low, high, None)
        denied = [0] * len(classes)
        for low, by in enumerate(self.negated_by):
            for high in _nodes(by):
                denied[class_of[high]] |= 1 << low
        for number in reversed(range(len(classes))):
            for other in after[number]:
                denied[other] |= denied[number]
            for node in classes[number]:
                self.denied[node] = denied[number]

    def _classes(self) -> list[list[int]]:
        """Return the nodes whose labels are known to be equal together, each class after all below it (Tarjan)."""
        found: list[list[int]] = []
        index: dict[int, int] = {}
        low: dict[int, int] = {}
        waiting: list[int] = []
        for root in range(len(self.direct)):
            if root in index:
                continue
            work = [(root, _nodes(self.direct[root]))]
            index[root] = low[root] = len(index)
            waiting.append(root)
            while work:
                node, others = work[-1]
                for other in others:
                    if other not in index:
                        index[other] = low[other] = len(index)
                        waiting.append(other)
                        work.append((other, _nodes(self.direct[other])))
                        break
                    # Nodes of finished classes have an index beyond all.
                    low[node] = min(low[node], index[other])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == index[node]:
                        place = waiting.index(node)
                        found.append(waiting[place:])
                        del waiting[place:]
                        index.update(dict.fromkeys(found[-1], _FINISHED))
        return found

    # --- deriving ---

    def differ(self, x: int, y: int) -> bool:
        """Return whether labels that are equal to the two are known to differ."""
        other = self._unequal_to.get(x)
        if other is None:
            other = 0
            for node in _nodes(self._equal(x) & self.with_unequal):
                other |= self.unequal[node]
            self._unequal_to[x] = other
        return bool(other & self._equal(y))

    def _equal(self, node: int) -> int:
        return self.below[node] & self.above[node]

    def paths(self, last: int, *pairs: tuple[int, int]) -> Premises:
        """Return the answers that make paths, without those after the answer with the number `last`."""
        return self._premises([self._path(*pair, last) for pair in pairs])

    def negation(self, last: int, x: int, y: int) -> Premises:
        """Return the answers from which ¬(x ≥ y) follows: ¬(high ≥ low) with high ≥ x and y ≥ low."""
        for low in _nodes(self.denied[x] & self.below[y]):
            for high in _nodes(self.above[x] & self.negated_by[low]):
                said = self._negations.get((high, low))
                paths = [self._path(high, x, last), self._path(y, low, last)]
                if said is None or said.number > last:
                    # A denied write says that not both are true, and the other one is.
                    said = self._unequals.get((min(high, low), max(high, low)))
                    paths.append(self._path(low, high, last))
                if said is not None and said.number <= last and all(paths):
                    return self._premises(paths, said)
        raise AssertionError("a negation that was known does not follow")

    def difference(self, last: int, x: int, y: int) -> Premises:
        """Return the answers from which follows that the labels of x and y differ."""
        for second in _nodes(self._equal(y) & self.with_unequal):
            for first in _nodes(self._equal(x) & self.unequal[second]):
                said = self._unequals[min(first, second), max(first, second)]
                pairs = ((x, first), (first, x), (y, second), (second, y))
                paths = [self._path(*pair, last) for pair in pairs]
                if said.number <= last and all(paths):
                    return self._premises(paths, said)
        raise AssertionError("a difference that was known does not follow")

    def _premises(self, paths: Iterable[list[int]], *said: _Entry) -> Premises:
        found = {one.number: one.cached for one in said}
        over: list[str] = []
        for path in paths:
            found.update((entry.number, entry.cached) for entry in map(self._edges.__getitem__, pairwise(path)))
            over += [self.texts[node] for node in path if len(path) > 1]
        return tuple(found.values()), tuple(over)

    def _path(self, start: int, end: int, last: int) -> list[int]:
        """Return a shortest path over answers up to the number `last`; empty if there is none."""
        came = {start: start}
        queue = deque((start,))
        while queue and end not in came:
            node = queue.popleft()
            for after in _nodes(self.direct[node] & self.above[end]):
                if after not in came and self._edges[node, after].number <= last:
                    came[after] = node
                    queue.append(after)
        if end not in came:
            return []
        path = [end]
        while path[-1] != start:
            path.append(came[path[-1]])
        return path[::-1]


_PATH: Final = RecyclingRule.PATH
_NEGATION: Final = RecyclingRule.NEGATION


class _Graph:
    """The answers of one declaration of labels, and the order that they show."""

    def __init__(self, read: frozenset[str], append: frozenset[str], write: frozenset[str]) -> None:
        self.names = (read, append, write)
        self.modes: Final[dict[str, _Mode]] = {
            name: mode for names, mode in zip(self.names, _Mode, strict=True) for name in names
        }
        self._answers: dict[int, _Entry] = {}
        self._order = _Order()
        #: the number of the last answer
        self._last = 0

    @property
    def size(self) -> int:
        """The number of subjects and objects."""
        return len(self._order.texts)

    def entries(self) -> list[_Entry]:
        """Return all answers that the graph consists of."""
        return list(self._answers.values())

    def oldest(self) -> list[_Entry]:
        """Return an eighth of the answers, the oldest."""
        return list(islice(self._answers.values(), len(self._answers) // 8 + 1))

    def soonest(self) -> list[_Entry]:
        """Return an eighth of the answers, those that end first."""
        return sorted(self._answers.values(), key=lambda entry: entry.until)[: len(self._answers) // 8]

    def answer(self, question: AccessQuestion) -> Recycled | None:
        """Return the answer to a question about a subject and an object that are both known."""
        mode = self.modes.get(question.action.id)
        if mode is None:
            return None
        order, subject, resource = self._order, question.subject, question.resource
        subjects, objects = order.subjects.get(subject.type), order.objects.get(resource.type)
        if subjects is None or objects is None:
            return None
        x, y = subjects.get(subject.id), objects.get(resource.id)
        if x is None or y is None:
            return None
        item, both = y, mode is _WRITE
        if mode is _APPEND:
            x, y = y, x
        # x ≥ y is asked, and for a write y ≥ x too.
        below, denied = order.below, order.denied
        if denied[x] & below[y]:
            return Recycled(DENY, _NEGATION, order.negation, (self._last, x, y))
        if below[x] >> y & 1 and (not both or below[y] >> x & 1):
            if order.discretionary >> item & 1:
                return None
            known = (self._last, (x, y), (y, x)) if both else (self._last, (x, y))
            return Recycled(PERMIT, _PATH, order.paths, known)
        if both and denied[y] & below[x]:
            return Recycled(DENY, _NEGATION, order.negation, (self._last, y, x))
        if both and order.with_unequal and order.differ(x, y):
            return Recycled(DENY, RecyclingRule.UNEQUAL, order.difference, (self._last, x, y))
        return None

    def add(self, entry: _Entry) -> None:
        """Learn an answer. Raises `_ContradictionError`, after which all answers are to be removed."""
        try:
            self._order.learn(entry, self.modes[entry.cached.question.action.id])
        except _ContradictionError:
            raise _ContradictionError(self.entries()) from None
        self._answers[entry.number] = entry
        self._last = entry.number

    def remove(self, entry: _Entry) -> None:
        """Forget an answer; `recompute` must follow."""
        self._answers.pop(entry.number, None)

    def recompute(self) -> None:
        """Compute the order from the answers. Derivations that were given go on with the old one."""
        self._order = _Order.of(
            (entry, self.modes[entry.cached.question.action.id]) for entry in self._answers.values()
        )


def _nodes(nodes: int) -> Iterator[int]:
    """Yield the nodes of a set, the lowest first."""
    bits = bin(nodes)[:1:-1]
    node = bits.find("1")
    while node >= 0:
        yield node
        node = bits.find("1", node + 1)


# ----------------------------------------------------------------------------------------------------------------------
# Sets. An answer is found by the values to which its set binds attributes: sets that bind the same attributes share a
# shape, and each shape is a dictionary.


@dataclass(slots=True, eq=False)
class _RequestSet:
    """The set of requests for which an answer holds: by which values it is found, and what else must be true."""

    rest: Callable[[AccessQuestion], bool]
    recycled: Recycled
    bound: Mapping[Key, Value]
    shape: tuple[Key, ...]
    #: the next set that is found by the same values
    after: "_RequestSet | None" = None
    #: used since it was last considered for eviction
    used: bool = False

    @property
    def place(self) -> tuple[Value, ...]:
        """The values by which it is found."""
        return tuple(self.bound[key] for key in self.shape)


@lru_cache(4_096)  # many sets differ only in what they are found by
def _compiled(selector: Selector) -> Callable[[AccessQuestion], bool]:
    """Return a function that says whether a plain question belongs to a set."""
    return compile_set_over(selector, _bag_of, partial(_bag_of, more=True))


_PlaceOf: TypeAlias = Callable[[AccessQuestion], tuple[Value, ...]]


class _SetIndex:
    """Sets of requests, and which of them a question belongs to."""

    def __init__(self, scan: int) -> None:
        self._scan = scan
        #: for each shape, a function that returns the place of a question, and the first set of each place
        self.shapes: dict[tuple[Key, ...], tuple[_PlaceOf, dict[tuple[Value, ...], _RequestSet]]] = {}

    def add(self, entry: _Entry, text: str) -> _RequestSet | None:
        """Add the set of an answer. A set that cannot be read is left out: the answer is recycled without it."""
        try:
            selector = parse(text)
            bound = bound_values(selector)
            shape = tuple(sorted(bound, key=lambda key: (key.category, key.id)))
            if shape not in self.shapes and len(self.shapes) >= _SHAPES:
                # The last resort are the sets that bind nothing: they are tried for each question.
                shape = ()
            rest = [part for part in conjuncts(selector) if not shape or not bound_values(part)]
            if not compile_request_set(selector)(facts_of(entry.cached.question)):
                return None
            belongs = _compiled(conjunction(*rest))
        except PenstockError:
            return None
        recycled = Recycled(entry.effect, RecyclingRule.SET, _itself, (entry.cached,))
        made = _RequestSet(belongs, recycled, bound, shape)
        _, places = self.shapes.setdefault(shape, (_place_of(shape), {}))
        first = places.setdefault(made.place, made)
        if first is not made:
            first.after, made.after = made, first.after
        return made

    def remove(self, found: _RequestSet) -> None:
        """Remove a set."""
        _, places = self.shapes[found.shape]
        place = found.place
        one: _RequestSet | None = places[place]
        if one is found:
            if found.after is not None:
                places[place] = found.after
            else:
                del places[place]
                if not places:
                    del self.shapes[found.shape]
            return
        while one is not None:
            if one.after is found:
                one.after = found.after
            one = one.after

    def answer(self, question: AccessQuestion) -> Recycled | None:
        """Return the answer of a set that contains the question, which is plain. Only so many of a place are tried."""
        for place_of, places in self.shapes.values():
            found, left = places.get(place_of(question)), self._scan
            while found is not None and left > 0:
                if found.rest(question):
                    found.used = True
                    return found.recycled
                found, left = found.after, left - 1
        return None


#: where a question has the attributes that identify something
_IDENTITY: Final = {
    KEY_SUBJECT_ID: "subject.id",
    KEY_SUBJECT_TYPE: "subject.type",
    KEY_RESOURCE_ID: "resource.id",
    KEY_RESOURCE_TYPE: "resource.type",
    KEY_ACTION_ID: "action.id",
}


_PROPERTIES: Final[Mapping[str, Callable[[AccessQuestion], Properties]]] = {
    requests.SUBJECT: lambda question: question.subject.properties,
    requests.RESOURCE: lambda question: question.resource.properties,
    requests.ACTION: lambda question: question.action.properties,
    requests.ENVIRONMENT: lambda question: question.context,
}
_PYTHON_TYPES: Final = {of_type: python for python, of_type in TYPES.items()}


def _bag_of(key: Key, *, more: bool = False) -> BagReader[AccessQuestion]:
    """Return a function that reads the bag of an attribute of a plain question, as `facts_of` says.

    If `more`, the bag can also contain values of other types, which saves looking at each.
    """
    if key in _IDENTITY:
        # No property of a plain question is called as the attributes that identify something.
        identity = attrgetter(_IDENTITY[key])
        return lambda question: (identity(question),)
    name, wanted = key.id, _PYTHON_TYPES.get(key.of)
    if key.category not in _PROPERTIES or wanted is None:
        return lambda question: facts_of(question).get(key, ())
    properties = _PROPERTIES[key.category]

    def bag(question: AccessQuestion) -> Sequence[Value]:
        value = properties(question).get(name)
        if type(value) is list:
            return value if more else tuple([one for one in value if type(one) is wanted])
        return (value,) if type(value) is wanted else ()

    return bag


@lru_cache(256)
def _place_of(shape: tuple[Key, ...]) -> _PlaceOf:
    """Return a function that returns the values of a plain question by which sets of this shape are found."""
    if len(shape) > 1 and all(key in _IDENTITY for key in shape):
        found: _PlaceOf = attrgetter(*(_IDENTITY[key] for key in shape))
        return found
    bags = [_bag_of(key) for key in shape]
    # None is not a value to which a set binds an attribute.
    return lambda question: tuple([bag[0] if len(bag := read(question)) == 1 else None for read in bags])


# ----------------------------------------------------------------------------------------------------------------------
# Changes of policies.


def _affects(change: PolicyChange, entry: _Entry) -> bool:
    """Return whether an answer may not hold any more after a change."""
    question = entry.cached.question
    resource = question.resource
    bound = None if entry.request_set is None else entry.request_set.bound
    if isinstance(change, ResourceChange):
        if change.matches(resource.type, resource.id):
            return True
        if bound is None:
            return False
        # An attribute that the set does not bind can have any value.
        of_type, of_id = bound.get(KEY_RESOURCE_TYPE), bound.get(KEY_RESOURCE_ID)
        return (of_type is None or change.resource_type in ("", of_type)) and (
            of_id is None or change.matches(change.resource_type, of_id)
        )
    permission = (change.action, change.resource_type, change.resource_id)
    if bound is not None and all(
        bound.get(key, value) == value for key, value in zip(_PERMISSION_KEYS, permission, strict=True)
    ):
        return True
    if permission != (question.action.id, resource.type, resource.id):
        return False
    if entry.permission is None:
        return True
    # Roles that get the permission make a Deny doubtful, roles that lose it a Permit.
    return change.role in entry.roles and change.granted is (entry.effect is DENY)


_PERMISSION_KEYS: Final = (KEY_ACTION_ID, KEY_RESOURCE_TYPE, KEY_RESOURCE_ID)
