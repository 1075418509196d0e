"""Find out which certificates are revoked: from the chains of policy events in a folder, and from a broker.

Certificates do not say whether they were revoked. Their owner's chain does, and a broker does for certificates that it
is shown. If neither is at hand, commands say that revocations were not checked.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Any, Final

from penstock.apps.cli.shared.broker_client import Call, complete_context, talk
from penstock.apps.cli.shared.commands import option
from penstock.apps.cli.shared.credentials import beside, load_credentials, read_bag, usable_credentials
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.session import Warned
from penstock.broker.client.client import Client
from penstock.errors import FailedError, PenstockError
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.store.files.client_files import CREDENTIALS, VARIABLES, OmittedArguments, load_key
from penstock.store.files.contexts import ConnectionContext, ContextFile, context_in_use
from penstock.store.files.policy_files import ChainFile
from penstock.trust.capabilities import Right, owner_of_tag
from penstock.trust.certificates import Authorisation, Certificate, Statement
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import Revocations
from penstock.trust.refusals import CredentialStatus, RevokedCertificate, last_revoked

CHAINS: Final = ".chain"
_KEYS: Final = "*.key"
#: seconds until a broker must have answered
_PATIENCE: Final = 5.0
_NO_CONTEXT: Final = "no context connects to their network; add one with `penstock context add`, or give --context"
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
        help="Ask this context's broker which certificates are revoked (default: the broker of their own network, from "
        "the environment or a context).",
    )


def may_revoke(statement: Statement) -> frozenset[Principal] | None:
    """Return the principals whose revocation of a certificate counts; None if these are all owners of types.

    A certificate's issuer can revoke it, and an owner can revoke it for its own types and networks.
    """
    owner = owner_of_tag(statement.tag) if isinstance(statement, Authorisation) else None
    return None if owner is None else frozenset((statement.issuer, owner))


@dataclass(frozen=True, slots=True)
class RenewalAdvice:
    """The commands that renew the certificates in files, and give a revoked right back. They can be copied.

    They name the issuer's key if it is in one of the user's contexts, or is found beside the files.
    """

    files: tuple[str, ...]
    key: str = ""
    context: str = ""

    @classmethod
    def of(cls, issuer: Principal, *files: str, near: Iterable[str] = ()) -> "RenewalAdvice":
        """Look for the issuer's key, also near other files."""
        with suppress(PenstockError):
            for name, one in ContextFile.load().contexts.items():
                if one.key and _is_key_of(issuer, one.key):
                    return cls(files, _shorter(one.key), name)
        places = dict.fromkeys(one for file in (*files, *near) for one in beside(Path(file), "keys", _KEYS))
        return cls(files, next((_shorter(str(one)) for one in places if _is_key_of(issuer, str(one))), ""))

    @classmethod
    def about(cls, certificate: Certificate, files: Iterable[str]) -> "RenewalAdvice":
        """Return the commands for a certificate in one of these files."""
        found = [_shorter(file) for file in files if _contains(file, certificate.id)]
        return cls.of(certificate.statement.issuer, *found[:1])

    @property
    def renew(self) -> str:
        """The command that renews them."""
        return f"penstock cert renew {self._files} --key {self.key_word}"

    @property
    def publish(self) -> str:
        """The command that gives the new certificates to all brokers."""
        who = f"--context {quote(self.context)}" if self.context else f"--key {self.key_word}"
        return f"penstock net publish {self._files} {who} --wait"

    @property
    def give_back(self) -> str:
        """What to do to give a revoked right back."""
        return f"run `{self.renew} --grant-again`, and then `{self.publish}`"

    @property
    def key_word(self) -> str:
        """The issuer's key as it is written in a command."""
        return quote(self.key or "ISSUER.key")

    @property
    def _files(self) -> str:
        return " ".join(map(quote, self.files)) or "FILE.cert"


def _is_key_of(principal: Principal, file: str) -> bool:
    with suppress(PenstockError):
        return NameBook.of({}).principal(file) == principal
    return False


def _contains(file: str, certificate: str) -> bool:
    with suppress(PenstockError):
        return any(one.id == certificate for one in read_bag([file]).credentials.certificates)
    return False


def _shorter(file: str) -> str:
    """Return a path as seen from here if that is shorter."""
    return min(os.path.relpath(file), file, key=len)


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


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A context, or the environment, whose broker could be asked about a certificate."""

    #: the context's name; None for the environment
    name: str | None
    found: ConnectionContext

    def principals(self) -> Iterator[Principal]:
        """Yield the network's owner, and whoever connects."""
        with suppress(PenstockError):
            yield NetworkName.parse(self.found.network).owner
        with suppress(PenstockError):
            yield NameBook.of({}).principal(self.found.key)

    def folders(self) -> set[Path]:
        """Return the folders of its files."""
        files = (self.found.key, self.found.type_file, *self.found.credentials)
        return {Path(file).absolute().parent for file in files if file}


def _candidates(chosen: str | None) -> Iterator[_Candidate]:
    """Yield the environment, the context in use and the other contexts. Raises as `ContextFile.load`."""
    url, network, key = (os.environ.get(variable, "") for variable in VARIABLES.values())
    if chosen is None and url:
        files = tuple(filter(None, os.environ.get(CREDENTIALS, "").split(os.pathsep)))
        yield _Candidate(None, ConnectionContext(broker=url, network=network, key=key, credentials=files))
    stored, in_use = ContextFile.load(), context_in_use(chosen)
    if in_use:
        yield from (_Candidate(name, stored.contexts[name]) for name in sorted(stored.contexts, key=in_use.__ne__))


def _concerned(certificates: Credentials) -> set[Principal]:
    """Return the issuers and subjects of certificates, and the owners of what they are about."""
    found: set[Principal] = set()
    for statement in (one.statement for one in certificates):
        owner = owner_of_tag(statement.tag) if isinstance(statement, Authorisation) else None
        about = (statement.issuer, statement.subject, owner)
        found.update(one for one in about if isinstance(one, Principal))
    return found


def check_files(files: Iterable[str], names: NameBook, context: str | None = None) -> dict[str, RevocationCheck]:
    """Ask brokers about the certificates in files: for each file that of its own network. Raises what reading raises.

    Without a chosen context, that is the broker of a context whose network's owner, or whose client, occurs in the
    certificates, or whose files are in the same folder: the context in use if it is one of several. If there is none,
    no broker is asked, because another network's broker knows nothing about them.
    """
    bags = {file: usable_credentials([file])[0] for file in files}
    groups: dict[str | None, list[str]] = {}
    checks = dict.fromkeys(bags, RevocationCheck(unchecked=_NO_CONTEXT))
    try:
        candidates = [] if context else [*_candidates(context)]
    except PenstockError as error:
        return dict.fromkeys(bags, RevocationCheck(unchecked=error.message))
    known = [(one, {*one.principals()}, one.folders()) for one in candidates]
    for file, bag in bags.items():
        concerned, folder = _concerned(bag), Path(file).absolute().parent
        ranks = [(not concerned.isdisjoint(who), folder in folders) for _, who, folders in known]
        best = max(ranks, default=(False, False))
        if context or any(best):
            groups.setdefault(context or known[ranks.index(best)][0].name, []).append(file)
    for name, group in groups.items():
        bag = sum((bags[file] for file in group), Credentials())
        checks |= dict.fromkeys(group, BrokerLookup(names, name).check(bag))
    return checks


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
