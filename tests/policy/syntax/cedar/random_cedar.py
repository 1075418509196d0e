"""Random Cedar policies over few attributes, with requests and entities that meet them; quickly made from a seed."""

import json
from random import Random
from typing import Any

from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.policy.syntax.cedar.compiler import ANCESTORS

Json = Any
#: attributes with the kinds by which policies use them; of the last two nothing is known
KINDS = {
    "s": "String", "t": "String", "n": "Long", "m": "Long", "b": "Bool", "ss": "Strings", "st": "Strings",
    "sn": "Longs", "e": "Entity", "se": "Entities", "r.s": "String", "r.q.n": "Long", "odd name": "String", "u": "",
    "v": "",
}  # fmt: skip
TEXTS = ["", "a", "ab", "aba", "b*", "x\ny", "ü-\\^$[]"]
PATTERNS = ['"a*"', '"*b"', '"*b*"', '"a*a"', '"*"', '"ab*ba"', r'"b\*"', '"a"', '"x*y*"', r'"*\\^$[]"', '"**"', '""']
NUMBERS = [-9223372036854775808, -1, 0, 1, 2, 9223372036854775807]
USERS, GROUPS, DOCUMENTS = ['User::"a"', 'User::"q\\""'], ['Group::"g"', 'Group::"h"'], ['Doc::"d"', 'Org::Doc::"d"']
ACTIONS = ['Action::"read"', 'Action::"write"', 'Action::"all"']
PARENTS = {
    'User::"a"': ['Group::"g"'], 'Group::"g"': ['Group::"h"'], 'Doc::"d"': ['Org::Doc::"d"'],
    'Action::"read"': ['Action::"all"'], 'Action::"write"': ['Action::"all"'],
}  # fmt: skip


def euid(text: str) -> dict[str, str]:
    """Return an entity as JSON."""
    of_type, _, name = text.partition('::"')
    return {"type": of_type, "id": json.loads(f'"{name}')}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def plain(text: str) -> str:
    """Return an entity as attributes have it: nothing is escaped."""
    found = euid(text)
    return f'{found["type"]}::"{found["id"]}"'


def above(text: str) -> list[str]:
    return [one for parent in PARENTS.get(text, []) for one in (parent, *above(parent))]


class CedarMaker:
    """Makes policies and requests at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # the same for a seed
        #: what a piece of text needs before it: variables and attributes
        self.needed: list[tuple[str, str]] = []

    def pick(self, *some: str) -> str:
        return self.random.choice(some)

    # --- policies ---------------------------------------------------------------------------------------------------

    def policies(self) -> str:
        return "\n".join(self.policy() for _ in range(self.random.choice([1, 1, 2, 3])))

    def policy(self) -> str:
        principal = self.pick(
            "", f" == {self.pick(*USERS)}", f" in {self.pick(*GROUPS)}", " is User", ' is User in Group::"h"'
        )
        some = ", ".join(self.random.sample(ACTIONS, 2))
        action = self.pick("", "", f" == {self.pick(*ACTIONS)}", f" in {self.pick(*ACTIONS)}", f" in [{some}]")
        resource = self.pick("", "", f" == {self.pick(*DOCUMENTS)}", f" in {self.pick(*DOCUMENTS)}", " is Doc")
        conditions = [
            f"{self.pick('when', 'when', 'unless')} {{ {self.truth(3)} }}" for _ in range(self.random.randrange(3))
        ]
        effect = self.pick("permit", "permit", "forbid")
        return f"{effect} (principal{principal}, action{action}, resource{resource}) {' '.join(conditions)};"

    def truth(self, depth: int) -> str:
        if depth and self.random.randrange(3):
            one, other = self.truth(depth - 1), self.truth(depth - 1)
            third = self.truth(depth - 1)
            return self.pick(
                f"({one}) && ({other})", f"({one}) || ({other})", f"!({one})", f"if {one} then {other} else {third}",
                f"({one}) == ({other})", f"({one}) && ({other}) && ({third})", f"[{one}, false].contains({other})",
            )  # fmt: skip
        return self.guarded()

    def guarded(self, wanted: str | None = None) -> str:
        """Return an atom after `has` for each of its attributes."""
        self.needed = []
        atom = self.atom(wanted)
        guards = [f"{variable} has {name if ' ' not in name else json.dumps(name)}" for variable, name in self.needed]
        match self.random.randrange(4):
            case 0 if guards:
                return f"{' || '.join(f'!({one})' for one in guards)} || {atom}"
            case 1 if guards:
                return f"if {' && '.join(guards)} then {atom} else {self.pick('true', 'false')}"
            case 2:
                records = [f"{variable} has r" for variable, name in self.needed if name.startswith("r.")]
                return " && ".join([*records, *guards, atom])
        return " && ".join([*guards, atom])

    def attribute(self, kind: str) -> str:
        name = self.pick(*(one for one, of in KINDS.items() if of == kind))
        variable = self.pick("principal", "resource", "context")
        self.needed.append((variable, name))
        return f"{variable}.{name}" if " " not in name else f"{variable}[{json.dumps(name)}]"

    def text(self) -> str:
        return self.pick(self.attribute("String"), quoted(self.pick(*TEXTS)))

    def number(self) -> str:
        number = str(self.random.choice(NUMBERS))
        return self.pick(self.attribute("Long"), number, number, "(1 + 2 * 3 - 6)")

    def entity(self) -> str:
        return self.pick("principal", "resource", self.attribute("Entity"), *USERS, *GROUPS, *DOCUMENTS)

    def atom(self, wanted: str | None = None) -> str:
        """Return an expression without others in it: of one sort, or of any."""
        texts = f"[{self.text()}, {quoted(self.pick(*TEXTS))}]"
        strings = self.pick(self.attribute("Strings"), texts)
        entities = self.pick(self.attribute("Entities"), f"[{self.entity()}, {self.pick(*GROUPS)}]", "[]")
        unknown = self.attribute("")
        relations = ("==", "!=", "<", "<=", ">", ">=")
        atoms = {
            **{sign: f"{self.number()} {sign} {self.number()}" for sign in relations},
            "text": f"{self.text()} {self.pick('==', '!=')} {self.text()}",
            "bool": self.attribute("Bool"),
            "entity": f"{self.entity()} {self.pick('==', '!=')} {self.entity()}",
            "action": f"action {self.pick('==', '!=', 'in')} {self.pick(*ACTIONS)}",
            "in": f"{self.pick('principal', 'resource')} in {self.pick(self.entity(), entities, *GROUPS)}",
            "in set": f"{self.pick('principal', 'resource')} in {self.attribute('Entities')}",
            "is": f"{self.entity()} is {self.pick('User', 'Doc', 'Org::Doc')}",
            "is in": f"principal is User in {self.pick(*GROUPS)}",
            "like": f"{self.text()} like {self.pattern()}",
            "contains": f"{strings}.contains({self.text()})",
            "numbers": f"{self.attribute('Longs')}.contains({self.number()})",
            "containsAll": f"{strings}.containsAll({self.attribute('Strings')})",
            "containsAny": f"{strings}.containsAny({self.attribute('Strings')})",
            "same": f"{self.attribute('Strings')} {self.pick('==', '!=')} {strings}",
            "isEmpty": f"{strings}.isEmpty()",
            "unknown": f"{unknown} {self.pick('==', '!=')} {self.attribute('')}",
            "true": self.pick("true", "false"),
        }
        chosen = wanted or self.pick(*atoms)
        # Only what the chosen one needs.
        self.needed = [
            (variable, name) for variable, name in dict.fromkeys(self.needed)
            if f"{variable}.{name}" in atoms[chosen] or f"{variable}[{json.dumps(name)}]" in atoms[chosen]
        ]  # fmt: skip
        return atoms[chosen]

    def pattern(self) -> str:
        return self.pick(*PATTERNS)

    # --- requests ---------------------------------------------------------------------------------------------------

    def value(self, kind: str) -> Json:
        """Return a value as Penstock's attributes have it."""
        match kind:
            case "String":
                return self.pick(*TEXTS)
            case "Long":
                return self.random.choice(NUMBERS)
            case "Bool":
                return self.random.choice([True, False])
            case "Entity":
                return plain(self.pick(*USERS, *GROUPS, *DOCUMENTS))
            case "Strings":
                return [self.value("String") for _ in range(self.random.choice([1, 2, 3]))]
            case "Longs":
                return [self.value("Long") for _ in range(self.random.choice([1, 2, 3]))]
            case "Entities":
                return [self.value("Entity") for _ in range(self.random.choice([1, 2]))]
        # A set of one value would be that value.
        return (
            self.value(self.pick("String", "Long", "Bool"))
            if self.random.randrange(4)
            else self.random.sample(TEXTS, 2)
        )

    def attributes(self, *, wrong: bool) -> tuple[dict[str, Json], dict[str, Json]]:
        """Return attributes as Cedar has them, and flat as Penstock has them; with `wrong`, some have other kinds."""
        cedar: dict[str, Json] = {}
        flat: dict[str, Json] = {}
        for name, kind in KINDS.items():
            if self.random.randrange(4) == 0:
                continue
            given = kind
            if wrong and kind in ("String", "Long", "Bool") and self.random.randrange(3) == 0:
                given = self.pick("String", "Long", "Bool")
            value = self.value(given)
            flat[name] = value
            *records, last = name.split(".")
            inside = cedar
            for record in records:
                inside = inside.setdefault(record, {})
            inside[last] = _entities(value) if kind in ("Entity", "Entities") else value
        return cedar, flat

    def request(self, *, wrong: bool = False) -> tuple[Json, list[Json], AccessQuestion]:
        """Return a request and its entities for Cedar, and the same for Penstock."""
        made = {one: self.attributes(wrong=wrong) for one in ("principal", "resource", "context")}
        principal, action, resource = self.pick(*USERS, 'Group::"g"'), self.pick(*ACTIONS), self.pick(*DOCUMENTS)
        entities: dict[str, Json] = {
            one: {"uid": euid(one), "attrs": {}, "parents": [euid(parent) for parent in PARENTS.get(one, [])]}
            for one in (*USERS, *GROUPS, *DOCUMENTS, *ACTIONS)
        }
        entities[principal]["attrs"], entities[resource]["attrs"] = made["principal"][0], made["resource"][0]
        question = AccessQuestion(
            _entity(principal, made["principal"][1]),
            Entity("", euid(action)["id"], {ANCESTORS: [plain(one) for one in above(action)]}),
            _entity(resource, made["resource"][1]),
            made["context"][1],
        )
        asked = {
            "principal": euid(principal), "action": euid(action), "resource": euid(resource),
            "context": made["context"][0],
        }  # fmt: skip
        return asked, [*entities.values()], question


def _entities(value: Json) -> Json:
    if isinstance(value, list):
        return [_entities(one) for one in value]
    of_type, _, name = value.partition('::"')
    return {"__entity": {"type": of_type, "id": name[:-1]}}


def _entity(text: str, properties: dict[str, Json]) -> Entity:
    found = euid(text)
    return Entity(found["type"], found["id"], {**properties, ANCESTORS: [plain(one) for one in above(text)]})
