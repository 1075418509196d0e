"""One question of AuthZEN, for the usual case: read, turned into facts and decided with as little ado as can be.

What comes of it is what `Deciding.evaluation` comes to, or nothing, and then that has to be asked: for what is no
question, for members that AuthZEN does not know, escaped characters, properties within properties and lists of what
are no texts, and for what policies have no straight answer to (`penstock.policy.straight`).
"""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, MsgspecError, Struct, UnsetType
from msgspec.json import Decoder

from penstock.apps.http.authzen import (
    KEY_ACTION_ID,
    KEY_RESOURCE_ID,
    KEY_RESOURCE_TYPE,
    KEY_SUBJECT_ID,
    KEY_SUBJECT_TYPE,
    RESERVED,
    TYPES,
    tell,
)
from penstock.apps.http.entities import Entities, Properties
from penstock.errors import EvaluationError, MalformedError
from penstock.policy.datatypes import Value
from penstock.policy.expressions import Designator
from penstock.policy.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Key
from penstock.policy.results import Decision
from penstock.policy.straight import Involved, Straight

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Properties: TypeAlias = dict[str, str | bool | int | float | list[str] | None]
_Flat: TypeAlias = _Properties | UnsetType | None
_Facts: TypeAlias = dict[Key, tuple[Value, ...]]


class QuickEntity(Struct, gc=False):
    """A subject or a resource."""

    type: _Text
    id: _Text
    properties: _Flat = UNSET


class QuickAction(Struct, gc=False):
    """What is to be done."""

    name: _Text
    properties: _Flat = UNSET


class QuickQuestion(Struct, gc=False):
    """A question."""

    subject: QuickEntity
    action: QuickAction
    resource: QuickEntity
    context: _Flat = UNSET


_decode: Final[Callable[[bytes], QuickQuestion]] = Decoder(QuickQuestion).decode
#: texts of a question without properties: names, and what they name
_TEXTS: Final = 13
_NOTHING: Final[_Facts] = {}


class _Side:
    """What policies may want to know of the subjects, resources, actions or circumstances of questions."""

    __slots__ = ("_category", "_names", "entities", "known")

    def __init__(
        self, category: str, wanted: Collection[Designator], entities: Mapping[str, Mapping[str, Properties]]
    ) -> None:
        kinds = {of_type: kind for kind, of_type in TYPES.items()}
        #: keys by their names, and by what the values are in JSON; names that no property may have have none
        self._names: dict[str, dict[type, Key]] = {name: {} for name in RESERVED}
        for one in wanted:
            if one.category == category and one.of in kinds and one.id not in RESERVED:
                self._names.setdefault(one.id, {})[kinds[one.of]] = one.key
        self._category = category
        self.entities = entities
        #: what the bundle knows, by type and id, as far as it was wanted already
        self.known: dict[tuple[str, str], _Facts] = {}

    def find(self, of_type: str, name: str) -> _Facts:
        """Return what the bundle knows of an entity. Raises `Involved`."""
        properties = self.entities[of_type].get(name)
        if properties is None:
            return _NOTHING
        found: _Facts = {}
        # Members of objects have other names, which a question might have too.
        if any(isinstance(value, dict) for value in properties.values()):
            raise Involved
        try:
            tell(found, self._category, properties)
        except MalformedError:
            raise Involved from None
        self.known[of_type, name] = found
        return found

    def say(self, facts: _Facts, properties: _Properties | None, known: _Facts = _NOTHING) -> int:
        """Add what a question says, instead of what is known, and return of how many texts. Raises `Involved`."""
        texts, names = 1, self._names
        for name, value in properties.items() if properties else ():
            values: tuple[Value, ...] = (value,)
            kind: type = type(value)
            texts += 1
            if kind is str:
                texts += 1
            elif isinstance(value, list):
                texts += len(value)
                values, kind = tuple(value), str
            keys = names.get(name)
            if keys is None:
                continue
            if not keys:
                raise Involved
            if known:
                for before in keys.values():
                    facts.pop(before, None)
            key = keys.get(kind)
            if key is not None:
                facts[key] = values
        return texts


class Quick:
    """See the module. It is that of one bundle."""

    __slots__ = ("_action", "_ask", "_context", "_resource", "_subject")

    def __init__(self, ask: Straight, entities: Entities, wanted: Collection[Designator]) -> None:
        self._ask = ask
        self._subject = _Side(SUBJECT, wanted, entities.subjects)
        self._resource = _Side(RESOURCE, wanted, entities.resources)
        self._action = _Side(ACTION, wanted, {"": entities.actions} if any(entities.actions.values()) else {})
        self._context = _Side(ENVIRONMENT, wanted, {})

    def decide(self, data: bytes, now: datetime) -> tuple[Decision, QuickQuestion] | None:
        """Return the decision and the question, if both are simple ones.

        It is Permit, Deny or NotApplicable, and there is nothing to be done besides.
        """
        if b"\\" in data:
            return None
        try:
            question = _decode(data)
            facts, texts = self._facts(question)
            # Without escapes each text has two quotation marks, and what stands there twice, or is not known, has more.
            return (self._ask(facts, now), question) if data.count(b'"') == 2 * texts else None
        except (MsgspecError, UnicodeDecodeError, EvaluationError, Involved):
            return None

    def _facts(self, question: QuickQuestion) -> tuple[_Facts, int]:
        """Return what policies may want to know, and how many texts the question has: `authzen.facts_of`, in short."""
        subject, action, resource = question.subject, question.action, question.resource
        who, which, does = subject.id, resource.id, action.name
        of_subject, of_resource = subject.type, resource.type
        facts: _Facts = {
            KEY_SUBJECT_ID: (who,),
            KEY_SUBJECT_TYPE: (of_subject,),
            KEY_RESOURCE_ID: (which,),
            KEY_RESOURCE_TYPE: (of_resource,),
            KEY_ACTION_ID: (does,),
        }
        texts, known = _TEXTS, _NOTHING
        # The same four times, in full: a call costs more than what it would do.
        side = self._subject
        if of_subject in side.entities:
            known = side.known.get((of_subject, who)) or side.find(of_subject, who)
            facts.update(known)
        if (properties := subject.properties) is not UNSET:
            texts += side.say(facts, properties, known)
        side, known = self._resource, _NOTHING
        if of_resource in side.entities:
            known = side.known.get((of_resource, which)) or side.find(of_resource, which)
            facts.update(known)
        if (properties := resource.properties) is not UNSET:
            texts += side.say(facts, properties, known)
        side, known = self._action, _NOTHING
        if side.entities:
            known = side.known.get(("", does)) or side.find("", does)
            facts.update(known)
        if (properties := action.properties) is not UNSET:
            texts += side.say(facts, properties, known)
        if (properties := question.context) is not UNSET:
            texts += self._context.say(facts, properties)
        return facts, texts
