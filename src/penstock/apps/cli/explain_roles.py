"""Roles in the answers of `penstock explain`: through which role a principal has a right, or what one would need."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.stores import check_lasting
from penstock.authority.role_book import RoleBook
from penstock.guard import Authority, EventRequest, NetworkRequest, Request
from penstock.guard.roles import ActiveRoles, RoleAuthority
from penstock.model.principals import Principal
from penstock.roles.engine import CredentialRecord, OpenSession, RoleEngine
from penstock.roles.explain import RoleExplanation, explain_activation
from penstock.roles.language import CredentialKind, EventPrivilege, NetworkPrivilege
from penstock.store.ledgers.urls import open_store
from penstock.trust.capabilities import Right

ROLE: Final = "role:"
CREDENTIAL: Final = "credential:"
#: roles that are explained in one refusal
_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class ExplainedRoles:
    """The roles of some domains at a time."""

    engines: tuple[RoleEngine, ...]
    names: NameBook

    def authorities(self, owner: Principal) -> Iterator[Authority]:
        """Yield the roles as sources of authority about an owner's types and networks."""
        for engine in self.engines:
            yield RoleAuthority(ActiveRoles(engine), frozenset({owner}))

    def facts(self, because: Sequence[str], owner: Principal) -> Iterator[tuple[str, str]]:
        """Yield the roles that a right depends on, and what each of them relies on."""
        for engine in self.engines:
            for record in engine.records():
                if f"{ROLE}{record.issuer}/{record.id}" not in because:
                    continue
                domain = self.names.show(engine.domain)
                yield "role", f"{_called(record)} of {domain}, since {record.since.isoformat()} (record {record.id})"
                if engine.domain != owner:
                    yield (
                        "counts",
                        f"at brokers that count {domain}'s roles on the owner's types, or as its certificate",
                    )
                for attempt in self._explained(engine, record).attempts:
                    for one in attempt.conditions:
                        yield "relies on", f"{one.condition}{' *' if one.member else ''}: {one.reason}"

    def data(self, because: Sequence[str]) -> list[dict[str, object]]:
        """Return the roles that a right depends on, as plain data."""
        return [
            record.as_dict()
            for engine in self.engines
            for record in engine.records()
            if f"{ROLE}{record.issuer}/{record.id}" in because
        ]

    def missing(self, who: Principal, request: Request) -> Iterator[str]:
        """Yield which roles would give a right, and what is missing to activate them."""
        for engine in self.engines:
            wanted = dict.fromkeys(
                rule.role for rule in engine.policy.authorisations() if _grants(engine, rule.privilege, request)
            )
            if not wanted:
                yield f"no role of {self.names.show(engine.domain)} gives this right"
            session = next((name for name, one in engine.sessions().items() if one == who), "")
            if not session:
                session = "explain"
                # In memory only: the question is what would be missing in a session.
                engine.apply(OpenSession(session, who))
            for role in islice(wanted, _MOST):
                declared = next(
                    one
                    for one in engine.policy.credentials()
                    if (one.kind, one.by, one.name) == (CredentialKind.ROLE, "self", role)
                )
                asked = (None,) * len(declared.parameters)
                yield from explain_activation(engine, session, role, asked, self.names.petnames).lines()

    def _explained(self, engine: RoleEngine, record: CredentialRecord) -> RoleExplanation:
        return explain_activation(engine, record.session, record.name, record.arguments, self.names.petnames)


def load_roles(stores: Sequence[str], names: NameBook, now: datetime) -> ExplainedRoles:
    """Read role books as of a time: `STORE`, or `STORE#LEDGER`. Raises as `open_store` and `RoleBook`."""
    engines = []
    with ExitStack() as stack:
        for written in stores:
            url, _, ledger = written.partition("#")
            check_lasting(url)
            store = stack.enter_context(open_store(url))
            book = RoleBook(store.ledger(ledger or "roles"))
            # As of then: what came later does not count.
            engine = book.founding.engine()
            engine.fold((time, change) for time, change in book.changes() if time <= now)
            engine.advance(now)
            engines.append(engine)
    return ExplainedRoles(tuple(engines), names)


def _called(record: CredentialRecord) -> str:
    listed = ", ".join(map(str, record.arguments))
    return f"{record.name}({listed})" if record.arguments else record.name


def _grants(engine: RoleEngine, privilege: object, request: Request) -> bool:
    match privilege, request:
        case NetworkPrivilege(), NetworkRequest():
            place = (engine.owner(privilege.owner), privilege.network)
            return (privilege.right, *place) == (request.action, request.network.owner, request.network.name)
        case EventPrivilege(), EventRequest():
            name = request.type.event_type.name
            rights = (request.action, Right.MANAGE) if request.action.startswith("manage-") else (request.action,)
            if privilege.right not in rights or engine.owner(privilege.owner) != name.owner:
                return False
            if privilege.below:
                line = (request.type.event_type.key, *request.type.event_type.ancestors)
                return any((one.owner, one.name) == (name.owner, privilege.types) for one in line)
            exact = not privilege.types.endswith("*")
            return name.name == privilege.types if exact else name.name.startswith(privilege.types[:-1])
    return False
