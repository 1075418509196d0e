"""Find out which certificates are revoked: from the chains of policy events in a folder, and from a broker.

Certificates do not say whether they were revoked. Their owner's chain does, and a broker does for certificates that it
is shown. If neither is at hand, commands say that revocations were not checked.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from penstock.apps.cli.shared.broker_client import Call, complete_context, talk
from penstock.apps.cli.shared.commands import option
from penstock.apps.cli.shared.credentials import load_credentials
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.session import Warned
from penstock.broker.client.client import Client
from penstock.errors import FailedError, PenstockError
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.store.files.client_files import OmittedArguments, load_key
from penstock.store.files.policy_files import ChainFile
from penstock.trust.capabilities import Right, owner_of_tag
from penstock.trust.certificates import Authorisation, Statement
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import Revocations
from penstock.trust.refusals import CredentialStatus, RevokedCertificate, last_revoked

CHAINS: Final = ".chain"
#: seconds until a broker must have answered
_PATIENCE: Final = 5.0
_OPTIONS: Final = {"url": "--broker", "network": "--network", "key": "--key"}


@dataclass(frozen=True, slots=True)
class RevocationCheck:
    """Which certificates are revoked, as far as that was found out."""

    revoked: tuple[RevokedCertificate, ...] = ()
    #: the broker that was asked, if one was
    broker: str = ""
    #: why no broker has answered
    unchecked: str = ""
    #: the principal that the broker has let in
    admitted: Principal | None = None
    #: how far the clock here is ahead of the broker's, at least
    ahead: timedelta | None = None
    #: what the broker permits that principal to do with the type in question; None if that is not known
    rights: frozenset[Right] | None = None
    #: the revoked certificates on which the other rights depended
    lost: Mapping[Right, tuple[RevokedCertificate, ...]] = field(default_factory=dict)

    def of(self, certificate: str, statement: Statement) -> RevokedCertificate | None:
        """Return the last revocation of a certificate that counts where the certificate does."""
        by = may_revoke(statement)
        return last_revoked(
            one for one in self.revoked if one.certificate == certificate and (by is None or one.by in by)
        )

    def known(self) -> Revocations:
        """Return the revocations for decisions about the present."""
        by_owner: dict[Principal, frozenset[str]] = {}
        for one in self.revoked:
            by_owner[one.by] = by_owner.get(one.by, frozenset()) | {one.certificate}
        return Revocations(by_owner)

    def until(self, now: datetime) -> "RevocationCheck":
        """Return the revocations up to a time: what was revoked later was valid then."""
        return replace(self, revoked=tuple(one for one in self.revoked if one.at is None or one.at <= now))

    @property
    def answered(self) -> bool:
        """Whether a broker has answered."""
        return bool(self.broker) and not self.unchecked

    def __or__(self, other: "RevocationCheck") -> "RevocationCheck":
        """Return what both have found. One broker that has answered is enough."""
        best = other if other.answered or not self.broker else self
        found = dict.fromkeys((*self.revoked, *other.revoked))
        return replace(best, revoked=tuple(found), unchecked="" if best.answered else self.unchecked or other.unchecked)

    def warnings(self) -> Iterator[Warned]:
        """Yield the warning that a broker is known, but has not answered."""
        if self.broker and self.unchecked:
            yield Warned("cert.unchecked", f"{self.broker} was not asked about revocations: {self.unchecked}")

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        data: dict[str, object] = {"checked": self.answered, "revoked": [one.as_dict() for one in self.revoked]}
        more = {"broker": self.broker, "reason": self.unchecked}
        return data | {key: value for key, value in more.items() if value}


NOT_CHECKED: Final = RevocationCheck()


def context_option() -> Any:
    """Declare `--context` for commands that ask a broker only about revocations."""
    return option(
        "--context",
        metavar="NAME",
        shell_complete=complete_context,
        help="Ask this context's broker which certificates are revoked (default: that of the environment, or of the "
        "context in use).",
    )


def may_revoke(statement: Statement) -> frozenset[Principal] | None:
    """Return the principals whose revocation of a certificate counts; None if these are all owners of types.

    A certificate's issuer can revoke it, and an owner can revoke it for its own types and networks.
    """
    owner = owner_of_tag(statement.tag) if isinstance(statement, Authorisation) else None
    return None if owner is None else frozenset((statement.issuer, owner))


def revoked_in_chains(files: Iterable[Path]) -> RevocationCheck:
    """Return what the chains of policy events in files revoke. A file that is not a chain is left out."""
    return RevocationCheck(tuple(one for file in files for one in _in_chain(file)))


def _in_chain(file: Path) -> Iterator[RevokedCertificate]:
    try:
        chain = ChainFile(file).read()
    except PenstockError:
        return
    for event in chain.events:
        for change in event.value.changes:
            for id_ in change.certificates if isinstance(change, Revoke) else ():
                yield RevokedCertificate(id_, event.value.owner, event.value.time)


@dataclass(frozen=True, slots=True)
class BrokerLookup:
    """Which broker to ask, and with which key. What is left out comes from the environment, or from a context."""

    names: NameBook
    context: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    broker_principal: str | None = None
    passphrase: bytes | None = None

    def call(self) -> Call:
        """Return the connection. Raises `MalformedError` (`client.environment`), and what reading the files raises."""
        omitted = OmittedArguments(self.context, _OPTIONS)
        found = {name: self.given.get(name) or omitted.find(name) for name in _OPTIONS}
        broker = self.broker_principal or omitted.broker_principal()
        return Call(
            found["url"],
            self.names.network(found["network"]),
            load_key(found["key"], self.passphrase),
            load_credentials(omitted.credential_files()),
            self.names,
            None if broker is None else self.names.principal(broker),
            0.0,
            key_file=found["key"],
        )

    def check(self, certificates: Credentials, about: TypeName | None = None) -> RevocationCheck:
        """Ask the broker about certificates, and rights on a type. If none is known, or it does not answer, say so."""
        try:
            call = self.call()
        except PenstockError as error:
            return RevocationCheck(unchecked=error.message)
        return check_at_broker(call, certificates, about)


def check_at_broker(call: Call, certificates: Credentials, about: TypeName | None = None) -> RevocationCheck:
    """Ask a broker which certificates are revoked, and what the caller may do with a type.

    If it does not answer, say so.
    """

    async def ask(_stop: asyncio.Event) -> RevocationCheck:
        try:
            async with asyncio.timeout(_PATIENCE), call.client() as client:
                return await ask_client(client, call.url, call.credentials, certificates, about)
        except TimeoutError:
            raise FailedError("client.timeout", f"{call.url} has not answered in {_PATIENCE:.0f} s") from None

    try:
        return talk(ask)
    except PenstockError as error:
        # A broker that refuses a connection says which certificates it refuses.
        revoked = error.fields.get("revoked")
        known = revoked if isinstance(revoked, tuple) else ()
        return RevocationCheck(known, call.url, "" if known else error.message)


async def ask_client(
    client: Client, url: str, shown: Credentials, certificates: Credentials, about: TypeName | None = None
) -> RevocationCheck:
    """Ask over a connection on which some certificates were shown already. Raises what the broker refuses."""
    known = {one.id for one in shown}
    new = tuple(one for one in certificates if one.id not in known)
    if new or certificates.quorums:
        await client.disclose(Credentials(new, certificates.quorums))
    before = datetime.now(UTC)
    status = await client.credential_status(about)
    ahead = _ahead(before, status, datetime.now(UTC))
    return RevocationCheck(status.revoked, url, "", client.principal, ahead, status.rights, status.lost)


def _ahead(before: datetime, status: CredentialStatus, after: datetime) -> timedelta:
    """Return by how much the clock here is ahead of the broker's at least, whenever the broker has answered."""
    if before <= status.time <= after:
        return timedelta(0)
    return before - status.time if status.time < before else after - status.time
