"""Scenarios from tests/scenarios, and the library as one of the two that answer them."""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.apps.cli.shared.events import parse_attribute, parse_spec, split_attribute
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model import NetworkName, Principal, TypeDefinition, TypeName, parse_instant
from penstock.trust.capabilities import (
    BoundSelector,
    Right,
    event_tag,
    flags,
    network_request,
    network_tag,
    read_terms,
    type_request,
)
from penstock.trust.certificates import (
    Authorisation,
    Certificate,
    Name,
    NameCertificate,
    Statement,
    Subject,
    Threshold,
    issue,
)
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import discover, sift
from penstock.trust.event_types import UnverifiedType, VerifiedType, sign_type, verify_type
from penstock.trust.explain import AuthorityQuestion, explain
from penstock.trust.validity import Validity

FOLDER = Path(__file__).parent.parent / "scenarios"

Table = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """A scenario as its file says it."""

    name: str
    data: Table

    @classmethod
    def load(cls, path: Path) -> "Scenario":
        return cls(path.stem, tomllib.loads(path.read_text()))

    @property
    def now(self) -> datetime:
        return parse_instant(self.data["now"]).astimezone(UTC)

    def tables(self, kind: str) -> list[Table]:
        found: list[Table] = self.data.get(kind, [])
        return found

    def table(self, kind: str, name: str) -> Table:
        return next(table for table in self.tables(kind) if table.get("id", table.get("name")) == name)

    def at(self, table: Table) -> datetime:
        return parse_instant(table["at"]) if "at" in table else self.now


def all_scenarios() -> list[Scenario]:
    return [Scenario.load(path) for path in sorted(FOLDER.glob("*.toml"))]


def seed(name: str) -> bytes:
    """Return the seed of a principal's key, which follows from its name."""
    return hashlib.sha256(f"penstock scenario {name}".encode()).digest()


@dataclass
class Answered:
    """What either of the two says to a question."""

    allowed: bool
    code: str = ""
    attributes: list[str] = field(default_factory=list)
    forced: dict[str, str] = field(default_factory=dict)
    where: list[str] = field(default_factory=list)
    when: list[str] = field(default_factory=list)


@dataclass
class Verified:
    """What either of the two says to a type."""

    valid: bool
    code: str = ""
    signer: str = ""
    because: list[str] = field(default_factory=list)


class Library:
    """The scenario, played with the library."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.keys = {name: SigningKey(seed(name)) for name in scenario.data["principals"]}
        self.quorums: dict[str, Threshold] = {}
        for table in scenario.tables("quorums"):
            members = tuple(self.subject(member) for member in table["members"])
            self.quorums[table["name"]] = Threshold(table["threshold"], members)
        self._certificates: dict[str, Certificate] = {}
        self._types: dict[str, UnverifiedType] = {}

    def subject(self, name: str) -> Subject:
        return self.quorums[name] if name in self.quorums else self.keys[name].principal

    def principal(self, name: str) -> Principal:
        return self.quorums[name].principal if name in self.quorums else self.keys[name].principal

    def network(self, written: str) -> NetworkName:
        owner, _, name = written.partition("/")
        return NetworkName(self.principal(owner), name)

    def certificate(self, name: str) -> Certificate:
        if name not in self._certificates:
            table = self.scenario.table("certificates", name)
            self._certificates[name] = issue(self._statement(table), self.keys[table["issuer"]])
        return self._certificates[name]

    def flags(self, name: str) -> list[str]:
        return [flag.code for flag in flags(self.certificate(name).statement)]

    def _statement(self, table: Table) -> Statement:
        issuer = self.keys[table["issuer"]].principal
        subject: Subject = self.subject(table["to"]) if "to" in table else issuer
        if "to_name" in table:
            assert isinstance(subject, Principal)
            subject = Name(subject, (table["to_name"].encode(),))
        validity = Validity.between(
            *(parse_instant(table[k]) if k in table else None for k in ("not_before", "not_after"))
        )
        if "name" in table:
            return NameCertificate(issuer, table["name"].encode(), subject, validity)
        rights = None if table["rights"] == "all" else [Right(right) for right in table["rights"]]
        if "network" in table:
            network = self.network(table["network"])
            tag = network_tag(network.owner, network.name, rights)
        elif "type" in table:
            owner, _, name = ("*", "", "*") if table["type"] == "*" else table["type"].partition("/")
            tag = event_tag(
                None if owner == "*" else self.principal(owner), None if name == "*" else name, None, rights
            )
        else:
            known = self.verified(table["of"]).event_type
            tag = event_tag(
                known.name.owner,
                known.name.name,
                table.get("version"),
                rights,
                attributes=[known.attribute(a).id for a in table["attributes"]] if "attributes" in table else None,
                forced={known.attribute(a).id: value for a, value in table.get("forced", {}).items()},
                where=[BoundSelector.of(text, known) for text in table.get("where", ())],
                when=table.get("when", ()),
            )
        return Authorisation(issuer, subject, tag, table.get("propagate", False), validity)

    def bag(self, names: list[str]) -> Credentials:
        return Credentials.of(
            *(self.certificate(name) for name in names if name not in self.quorums),
            quorums=[self.quorums[name] for name in names if name in self.quorums],
        )

    def type(self, name: str) -> UnverifiedType:
        if name not in self._types:
            table = self.scenario.table("types", name)
            signer = self.keys[table["signer"]]
            self._types[name] = sign_type(self._definition(table), signer, self.bag(table.get("credentials", [])))
        return self._types[name]

    def _definition(self, table: Table) -> TypeDefinition:
        if "previous" not in table:
            return TypeDefinition(
                TypeName(
                    self.principal(table.get("owner") or table["signer"]), table["name"], table.get("version", "0")
                ),
                tuple(parse_attribute(written, "") for written in table["attributes"]),
                self.type(table["extends"]).definition.name if "extends" in table else None,
            )
        before = self.type(table["previous"]).definition
        attributes = [a for a in before.attributes if a.name not in table.get("remove", ())]
        renamed = dict(pair.split("=") for pair in table.get("rename", ()))
        attributes = [type(a)(renamed.get(a.name, a.name), a.uid, a.spec) for a in attributes]
        for written in table.get("retype", ()):
            name, uid, spec = split_attribute(written)
            attributes = [type(a)(name, uid or "", parse_spec(spec)) if a.name == name else a for a in attributes]
        attributes += [parse_attribute(written, "") for written in table.get("add", ())]
        version = TypeName(before.name.owner, before.name.name, table["version"])
        return TypeDefinition(version, tuple(attributes), before.extends, before.name.version)

    def verified(self, name: str) -> VerifiedType:
        table = self.scenario.table("types", name)
        return self._verify(name, [table[k] for k in ("previous", "extends") if k in table], None, self.scenario.now)

    def _verify(self, name: str, others: list[str], network: NetworkName | None, now: datetime) -> VerifiedType:
        shelf = {self.type(other).definition.name: self.type(other) for other in others}
        return verify_type(self.type(name), now, types=shelf.get, network=network)

    def verify(self, table: Table) -> Verified:
        network = self.network(table["network"]) if "network" in table else None
        try:
            found = self._verify(table["type"], table.get("with", []), network, self.scenario.at(table))
        except PenstockError as error:
            return Verified(valid=False, code=error.code)
        return Verified(
            True, "", self._name(found.signer), sorted(self._id(credential) for credential in found.because)
        )

    def ask(self, table: Table) -> Answered:
        now, who, right = self.scenario.at(table), self.principal(table["principal"]), Right(table["right"])
        bag = self.bag(table["show"])
        if "network" in table:
            network = self.network(table["network"])
            root, request, known = network.owner, network_request(network, right), None
        else:
            known = self.verified(table["on"]).event_type
            root, request = known.name.owner, type_request(known.name, right)
        grants = discover(bag, root, who, request, now).grants
        if not grants:
            why = explain(AuthorityQuestion(bag, sift(bag, now), root, who, request))
            return Answered(False, next((link.code for link in why.links if link.code), why.code))
        answer = Answered(allowed=True)
        if known is not None:
            assert len(grants) == 1
            terms = read_terms(grants[0].tag, known)
            name_of: dict[str, str] = {a.id: a.name for a in known.attributes}
            answer.attributes = [
                a.name for a in known.attributes if terms.attributes is None or a.id in terms.attributes
            ]
            answer.forced = {name_of[id_]: str(value) for id_, value in terms.forced.items()}
            answer.where = [selector.rename(name_of).text for selector in terms.where]
            answer.when = [selector.text for selector in terms.when]
        return answer

    def _name(self, principal: Principal) -> str:
        names: list[str] = [*self.keys, *self.quorums]
        return next(name for name in names if self.principal(name) == principal)

    def _id(self, credential: str) -> str:
        return next(name for name, made in self._certificates.items() if made.id == credential)


def expected_answer(table: Table) -> Answered:
    return Answered(
        table["allowed"],
        table.get("code", ""),
        table.get("attributes", []),
        {name: str(value) for name, value in _mapping(table.get("forced", {})).items()},
        table.get("where", []),
        table.get("when", []),
    )


def expected_verification(table: Table) -> Verified:
    return Verified(table["valid"], table.get("code", ""), table.get("signer", ""), sorted(table.get("because", [])))


def _mapping(value: Mapping[str, object]) -> Mapping[str, object]:
    return value
