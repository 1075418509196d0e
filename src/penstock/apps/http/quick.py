"""One question of AuthZEN, for the usual case: read, turned into facts and decided with as little ado as can be.

What comes of it is what `Deciding.evaluation` comes to, or nothing, and then that has to be asked: for what is no
question, for members that AuthZEN does not know, escaped characters, properties within properties and lists of what
are no texts, and for what policies have no straight answer to (`penstock.policy.engine.fast_path`).
"""

from collections.abc import Callable, Mapping
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
    TYPES,
    tell,
)
from penstock.apps.http.entities import RESERVED, Entities
from penstock.errors import EvaluationError
from penstock.policy.engine.fast_path import Bags, Involved, Straight
from penstock.policy.language.datatypes import Value
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Key
from penstock.policy.language.results import XacmlDecision

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Flat: TypeAlias = dict[str, str | bool | int | float | list[str] | None] | UnsetType | None


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
#: an byte is looked for more quickly than bytes
_ESCAPE: Final = ord("\\")
_QUOTE: Final = ord('"')
#: texts of a question without properties: names, and what they name
_TEXTS: Final = 13
#: what is asked of each question, by its place among the bags
ALWAYS: Final = (KEY_SUBJECT_ID, KEY_SUBJECT_TYPE, KEY_RESOURCE_ID, KEY_RESOURCE_TYPE, KEY_ACTION_ID)
_Known: TypeAlias = Mapping[int, tuple[Value, ...]]
_NOTHING: Final[_Known] = {}
_NOWHERE: Final[Mapping[type, int]] = {}
_NO_NAMES: Final[frozenset[str]] = frozenset()


class _Side:
    """What policies may want to know of the subjects, resources, actions or circumstances of questions."""

    __slots__ = ("_all", "_category", "_names", "_places", "entities", "known")

    def __init__(self, category: str, places: Mapping[Key, int], entities: Entities) -> None:
        kinds = {of_type: kind for kind, of_type in TYPES.items()}
        #: places by names, and by what the values are in JSON; names that no property may have have none
        self._names: dict[str, dict[type, int]] = {name: {} for name in RESERVED}
        for key, place in places.items():
            if key.category == category and key.of in kinds and key.id not in RESERVED:
                self._names.setdefault(key.id, {})[kinds[key.of]] = place
        self._category = category
        self._places = places
        self._all = entities
        self.entities = entities.by_category.get(category, {})
        #: what the bundle knows, by type and id, as far as it was wanted already
        self.known: dict[tuple[str, str], _Known] = {}

    def find(self, of_type: str, name: str) -> _Known:
        """Return what the bundle knows of an entity."""
        properties = self.entities[of_type].get(name)
        if properties is None:
            return _NOTHING
        facts: dict[Key, tuple[Value, ...]] = {}
        tell(facts, self._category, properties)
        known = {self._places[key]: values for key, values in facts.items() if key in self._places}
        self.known[of_type, name] = known
        return known

    def tell(self, bags: Bags, of_type: str, name: str, properties: _Flat) -> int:
        """Put what is known and what a question says among the bags, and return of how many texts it is.

        Raises `Involved`.
        """
        for place, values in (self.known.get((of_type, name)) or self.find(of_type, name)).items():
            bags[place] = values
        return self.add(bags, of_type, name, properties)

    def add(self, bags: Bags, of_type: str, name: str, properties: _Flat) -> int:
        """Put what a question says beside what is known, and return of how many texts it is. Raises `Involved`."""
        if self._all.trust_properties:
            # What is known is taken back where a question says something else, of whatever type.
            for one in properties or ():
                for place in self._names.get(one, _NOWHERE).values():
                    bags[place] = ()
        return self.say(bags, properties, self._all.owned(self._category, of_type, name) if properties else _NO_NAMES)

    def say(self, bags: Bags, properties: _Flat, owned: frozenset[str] = _NO_NAMES) -> int:
        """Put what a question says among the bags, and return of how many texts it is. Raises `Involved`.

        Of names that are the bundle's, what a question says does not count.
        """
        if not properties:
            return 0 if properties is UNSET else 1
        texts, names = 1, self._names
        for name, value in properties.items():
            kind: type = type(value)
            if kind is str:
                texts += 2
                values: tuple[Value, ...] = (value,)
            elif isinstance(value, list):
                texts += 1 + len(value)
                values, kind = tuple(value), str
            else:
                texts += 1
                values = (value,)
            if name in names:
                places = names[name]
                if not places:
                    raise Involved
                if kind in places and name not in owned:
                    bags[places[kind]] = values
        return texts


class Quick:
    """See the module. It is that of one bundle, and `straight` has the places of `ALWAYS` first."""

    __slots__ = ("_action", "_acts", "_ask", "_context", "_resource", "_rest", "_rests", "_subject")

    def __init__(self, straight: Straight, entities: Entities) -> None:
        places = straight.places
        self._ask = straight.ask
        #: bags after those of `ALWAYS`, where nothing is known, and for subjects who are and have asked before
        self._rest: Bags = [()] * (len(places) - len(ALWAYS))
        self._rests: dict[tuple[str, str], Bags] = {}
        self._subject = _Side(SUBJECT, places, entities)
        self._resource = _Side(RESOURCE, places, entities)
        self._action = _Side(ACTION, places, entities)
        #: whether anything is known of actions but their names
        self._acts = any(entities.actions.values())
        self._context = _Side(ENVIRONMENT, places, entities)

    def decide(self, data: bytes, now: datetime) -> tuple[XacmlDecision, QuickQuestion] | None:
        """Return the decision and the question, if both are simple ones.

        It is Permit, Deny or NotApplicable, and there is nothing to be done besides.
        """
        if _ESCAPE in data:
            return None
        try:
            question = _decode(data)
            subject, action, resource = question.subject, question.action, question.resource
            who, of_subject, of_resource = subject.id, subject.type, resource.type
            rest, texts = self._rest, _TEXTS
            if of_subject in self._subject.entities:
                rest = self._rests.get((of_subject, who)) or self._rest_of(of_subject, who)
            bags = [(who,), (of_subject,), (resource.id,), (of_resource,), (action.name,), *rest]
            side, properties = self._resource, resource.properties
            if of_resource in side.entities:
                texts += side.tell(bags, of_resource, resource.id, properties)
            elif properties is not UNSET:
                texts += side.say(bags, properties)
            if (
                self._acts
                or action.properties is not UNSET
                or question.context is not UNSET
                or subject.properties is not UNSET
            ):
                texts += self._more(bags, question)
            # Without escapes each text has two quotation marks, and what stands there twice, or is not known, has more.
            return (self._ask(bags, now), question) if data.count(_QUOTE) == 2 * texts else None
        except (MsgspecError, UnicodeDecodeError, RecursionError, EvaluationError, Involved):
            return None

    def _more(self, bags: Bags, question: QuickQuestion) -> int:
        """Add what is said of subjects and circumstances, and of actions, and return of how many texts it is."""
        subject, action = question.subject, question.action
        if subject.type in self._subject.entities:
            texts = self._subject.add(bags, subject.type, subject.id, subject.properties)
        else:
            texts = self._subject.say(bags, subject.properties)
        texts += self._context.say(bags, question.context)
        if self._acts:
            return texts + self._action.tell(bags, "", action.name, action.properties)
        return texts + self._action.say(bags, action.properties)

    def _rest_of(self, of_subject: str, who: str) -> Bags:
        """Return the bags after those of `ALWAYS`, with what is known of a subject; subjects ask again and again."""
        rest = self._rest.copy()
        known = self._subject.find(of_subject, who)
        for place, values in known.items():
            rest[place - len(ALWAYS)] = values
        if known:
            self._rests[of_subject, who] = rest
        return rest
