"""The fast path for usual questions of AuthZEN 1.0 (`penstock.authority.decisions.questions`).

What a bundle knows of an entity goes before what a question says.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, MsgspecError, Struct, UnsetType
from msgspec.json import Decoder, Encoder

from penstock.apps.http.entities import Entities
from penstock.authority.decisions.questions import (
    KEY_ACTION_ID,
    KEY_RESOURCE_ID,
    KEY_RESOURCE_TYPE,
    KEY_SUBJECT_ID,
    KEY_SUBJECT_TYPE,
    RESERVED,
    TYPES,
    tell,
)
from penstock.errors import PenstockError
from penstock.policy.engine.fast_path import Bags, FastPolicy, NoFastAnswer
from penstock.policy.language.datatypes import Value
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Key
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.json.requests import read_json

# ----------------------------------------------------------------------------------------------------------------------
# Answer one AuthZEN question by a fast policy (`penstock.policy.engine.fast_path`): read it straight into bags.


_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Flat: TypeAlias = dict[str, str | bool | int | float | list[str] | None] | UnsetType | None


class PlainEntity(Struct, gc=False, forbid_unknown_fields=True):
    """A subject or a resource."""

    type: _Text
    id: _Text
    properties: _Flat = UNSET


class PlainAction(Struct, gc=False, forbid_unknown_fields=True):
    """Obligations and advice."""

    name: _Text
    properties: _Flat = UNSET


class PlainQuestion(Struct, gc=False, forbid_unknown_fields=True):
    """A question without anything unusual."""

    subject: PlainEntity
    action: PlainAction
    resource: PlainEntity
    context: _Flat = UNSET


_decode: Final[Callable[[bytes], PlainQuestion]] = Decoder(PlainQuestion).decode
_encode: Final[Callable[[PlainQuestion], bytes]] = Encoder().encode
#: a byte is looked for more quickly than bytes
_ESCAPE: Final = ord("\\")
_BLANK: Final = ord(" ")
_SPACES: Final = b" \t\r\n"
#: the attributes of every question, by their place among the bags
ALWAYS: Final = (KEY_SUBJECT_ID, KEY_SUBJECT_TYPE, KEY_RESOURCE_ID, KEY_RESOURCE_TYPE, KEY_ACTION_ID)
_Known: TypeAlias = Mapping[int, tuple[Value, ...]]
_NOTHING: Final[_Known] = {}
_NOWHERE: Final[Mapping[type, int]] = {}
_NO_NAMES: Final[frozenset[str]] = frozenset()


class _Side:
    """The attributes that policies use of the subjects, resources, actions or contexts of questions."""

    __slots__ = ("_all", "_category", "_names", "_places", "entities", "known")

    def __init__(self, category: str, places: Mapping[Key, int], entities: Entities) -> None:
        kinds = {of_type: kind for kind, of_type in TYPES.items()}
        #: places by name, and by data type in JSON; names that no property may have are missing
        self._names: dict[str, dict[type, int]] = {name: {} for name in RESERVED}
        for key, place in places.items():
            if key.category == category and key.of in kinds and key.id not in RESERVED:
                self._names.setdefault(key.id, {})[kinds[key.of]] = place
        self._category = category
        self._places = places
        self._all = entities
        self.entities = entities.by_category.get(category, {})
        #: properties from the bundle, by type and id, as far as they were used
        self.known: dict[tuple[str, str], _Known] = {}

    def find(self, of_type: str, name: str) -> _Known:
        """Return the bundle's properties of an entity."""
        properties = self.entities[of_type].get(name)
        if properties is None:
            return _NOTHING
        facts: dict[Key, tuple[Value, ...]] = {}
        tell(facts, self._category, properties)
        known = {self._places[key]: values for key, values in facts.items() if key in self._places}
        self.known[of_type, name] = known
        return known

    def tell(self, bags: Bags, of_type: str, name: str, properties: _Flat) -> bool:
        """Put the bundle's and the question's properties into the bags, and return whether there are floats.

        Raises `NoFastAnswer`.
        """
        for place, values in (self.known.get((of_type, name)) or self.find(of_type, name)).items():
            bags[place] = values
        return self.add(bags, of_type, name, properties)

    def add(self, bags: Bags, of_type: str, name: str, properties: _Flat) -> bool:
        """Add the question's properties to the bundle's, and return whether there are floats. Raises `NoFastAnswer`."""
        if self._all.trust_properties:
            # A property of the question, of any type, replaces that of the bundle.
            for one in properties or ():
                for place in self._names.get(one, _NOWHERE).values():
                    bags[place] = ()
        return self.say(bags, properties, self._all.owned(self._category, of_type, name) if properties else _NO_NAMES)

    def say(self, bags: Bags, properties: _Flat, owned: frozenset[str] = _NO_NAMES) -> bool:
        """Put the question's properties into the bags, and return whether there are floats. Raises `NoFastAnswer`.

        Properties that the bundle has do not count in the question.
        """
        if not properties:
            return False
        floats, names = False, self._names
        for name, value in properties.items():
            kind: type = type(value)
            values: tuple[Value, ...] = (value,)
            if isinstance(value, list):
                values, kind = tuple(value), str
            elif kind is float:
                floats = True
            if name in names:
                places = names[name]
                if not places:
                    raise NoFastAnswer
                if kind in places and name not in owned:
                    bags[places[kind]] = values
        return floats


Answer: TypeAlias = Callable[[bytes, datetime], tuple[XacmlDecision, PlainQuestion] | None]
"""Returns the decision and the question, if both are plain ones.

The decision is Permit, Deny or NotApplicable, and nothing comes with it. For any other question there is nothing, and
`Deciding.evaluation` must be asked.
"""


def fast_answers(fast: FastPolicy, entities: Entities) -> Answer:
    """Return a function that answers questions by a policy, whose first places are `ALWAYS`, and the bundle."""
    places = fast.places
    subjects, resources, actions, context = (
        _Side(category, places, entities) for category in (SUBJECT, RESOURCE, ACTION, ENVIRONMENT)
    )
    #: whether anything is known of actions but their names
    acts = any(entities.actions.values())
    #: bags after those of `ALWAYS`: for unknown subjects, and for known ones that have asked before
    nothing: Bags = [()] * (len(places) - len(ALWAYS))
    of_subjects: dict[tuple[str, str], Bags] = {}
    known_subjects, known_resources = subjects.entities, resources.entities
    rest_of, say_of_resource, ask = of_subjects.get, resources.say, fast.ask

    def first_rest(of_type: str, name: str) -> Bags:
        """Return the bags after those of `ALWAYS` with a subject's properties; they are cached by subject."""
        rest = nothing.copy()
        known = subjects.find(of_type, name)
        for place, values in known.items():
            rest[place - len(ALWAYS)] = values
        if known:
            of_subjects[of_type, name] = rest
        return rest

    def more(bags: Bags, question: PlainQuestion) -> bool:
        """Add the properties of subjects, contexts and actions, and return whether there are floats."""
        subject, action = question.subject, question.action
        if subject.type in known_subjects:
            floats = subjects.add(bags, subject.type, subject.id, subject.properties)
        else:
            floats = subjects.say(bags, subject.properties)
        floats = context.say(bags, question.context) or floats
        if acts:
            return actions.tell(bags, "", action.name, action.properties) or floats
        return actions.say(bags, action.properties) or floats

    def answer(data: bytes, now: datetime) -> tuple[XacmlDecision, PlainQuestion] | None:
        if _ESCAPE in data:
            return None
        try:
            question = _decode(data)
            subject, action, resource = question.subject, question.action, question.resource
            who, of_subject, of_resource = subject.id, subject.type, resource.type
            rest, properties, floats = nothing, resource.properties, False
            if of_subject in known_subjects:
                rest = rest_of((of_subject, who)) or first_rest(of_subject, who)
            bags = [(who,), (of_subject,), (resource.id,), (of_resource,), (action.name,), *rest]
            if of_resource in known_resources:
                floats = resources.tell(bags, of_resource, resource.id, properties)
            elif properties is not UNSET:
                floats = say_of_resource(bags, properties)
            if (
                acts
                or action.properties is not UNSET
                or question.context is not UNSET
                or subject.properties is not UNSET
            ):
                floats = more(bags, question) or floats
            if floats:
                # Written again they may be longer: that no member is there twice, another reader says.
                read_json(data)
            else:
                # The decoder takes the last of members that are there twice. What was read is written again without
                # spaces around values. Nothing in it is longer than it was, since no characters are escaped. So it is
                # as long as the data but for spaces, or something was left out.
                again = _encode(question)
                if (_BLANK in again or len(again) != len(data) - data.count(_BLANK)) and (
                    len(again.translate(None, _SPACES)) != len(data.translate(None, _SPACES))
                ):
                    return None
            return ask(bags, now), question
        except (MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, PenstockError, NoFastAnswer):
            return None

    return answer
