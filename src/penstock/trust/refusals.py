"""Refusals for lack of rights: who may not do what, or no longer, and the command that explains it.

All such refusals are made here, so that they read alike. The message says who lacks which right on which event type or
network: that is the request itself, so everybody may see it. The hint is a `penstock explain` command that can be run
as it is. Why the right is missing is not said here: that is for those who may know it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from shlex import quote
from typing import Final, TypeAlias

from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.names import NetworkName, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, network_request, type_request
from penstock.trust.certificates import Authorisation, Statement
from penstock.trust.tags import intersect

EXPLAIN: Final = "penstock explain"
Resource: TypeAlias = TypeName | TypeKey | NetworkName
"""What a right is about."""

_VERBS: Final = {
    Right.CONNECT: "connect to",
    Right.BROKER: "be a broker of",
    Right.INSTALL: "install types on",
    Right.ADMINISTER: "administer",
    Right.AUDIT: "audit",
    Right.PUBLISH: "publish",
    Right.SUBSCRIBE: "subscribe to",
    Right.RESTRICTIONS: "ask about restrictions on",
    Right.ROUTE: "route",
    Right.HISTORY: "get the old keys of",
    Right.KEYS: "manage the keys of",
    Right.STAMP: "sign time-stamps for the owner of",
    Right.MANAGE: "manage",
    Right.MANAGE_ADD: "add attributes of",
    Right.MANAGE_REMOVE: "remove attributes of",
    Right.MANAGE_RENAME: "rename attributes of",
    Right.MANAGE_RETYPE: "retype attributes of",
}
#: what clients do with an event type
TYPE_USES: Final = frozenset((Right.PUBLISH, Right.SUBSCRIBE))
#: characters of a certificate's id that people recognise it by
_RECOGNISED: Final = 17


def action_text(right: Right, what: str) -> str:
    """Return what somebody does who uses a right.

    >>> action_text(Right.SUBSCRIBE, "acme/demo.Reading")
    'subscribe to acme/demo.Reading'
    """
    return f"{_VERBS[right]} {what}"


def resource_text(about: Resource, show: Callable[[Principal], str] = lambda owner: owner.short) -> str:
    """Return a type or a network as `owner/name`, with the owner as `show` writes it."""
    version = f"@{about.version}" if isinstance(about, TypeName) else ""
    return f"{show(about.owner)}/{about.name}{version}"


class RightChange(StrEnum):
    """How the right to something that somebody does already has changed."""

    #: nothing of it is permitted any more
    WITHDRAWN = "withdrawn"
    #: it is restricted in another way
    RESTRICTED = "restricted"
    #: some of it is permitted again
    RESTORED = "restored"

    def text(self, who: Principal, right: Right, about: Resource) -> str:
        """Return the change as a sentence."""
        action = action_text(right, resource_text(about))
        match self:
            case RightChange.WITHDRAWN:
                return f"{who.short} may no longer {action}"
            case RightChange.RESTRICTED:
                return f"{who.short} may {action} with other restrictions"
            case RightChange.RESTORED:
                return f"{who.short} may {action} again"


@dataclass(frozen=True, slots=True)
class RevokedCertificate:
    """A certificate that a principal has revoked, and when the revocation was signed if that is known."""

    certificate: str
    by: Principal
    at: datetime | None = None

    def __str__(self) -> str:
        return f"certificate {self.certificate[:_RECOGNISED]}… was {self.words()}"

    def words(self, show: Callable[[Principal], str] = lambda owner: owner.short) -> str:
        """Return by whose order it is revoked, and since when."""
        when = "" if self.at is None else f" at {self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"revoked{when} by {show(self.by)}"

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        at = None if self.at is None else self.at.isoformat().replace("+00:00", "Z")
        return {"certificate": self.certificate, "by": str(self.by), "at": at}


@dataclass(frozen=True, slots=True)
class CredentialStatus:
    """The time at a broker, which certificates of a client are revoked there, and its rights on a type.

    `rights` tells which of `TYPE_USES` the broker permits; None if it was not asked, or does not know the type. `lost`
    has the revoked certificates that each of the others depended on.
    """

    time: datetime
    revoked: tuple[RevokedCertificate, ...] = ()
    rights: frozenset[Right] | None = None
    lost: Mapping[Right, tuple[RevokedCertificate, ...]] = field(default_factory=dict)


def last_revoked(revoked: Iterable[RevokedCertificate]) -> RevokedCertificate | None:
    """Return the newest of some revocations: what somebody could do until then ended with it."""
    return max(revoked, key=lambda one: (one.at is not None, one.at), default=None)


@dataclass(frozen=True, slots=True)
class LackedRight:
    """A right that a principal lacks on an event type or a network."""

    who: Principal
    right: Right
    about: Resource

    def __str__(self) -> str:
        return f"{self.who.short} may not {action_text(self.right, resource_text(self.about))}"

    def depends_on(self, statement: Statement) -> bool:
        """Return whether a certificate could be a part of the right: it grants some of it, or it defines a name."""
        about, right = self.about, self.right
        if not isinstance(statement, Authorisation) or isinstance(about, TypeKey):
            return True
        asked = network_request(about, right) if isinstance(about, NetworkName) else type_request(about, right)
        try:
            return intersect(statement.tag, asked) is not None
        except LimitError:
            return True

    def command(
        self, asker: str | None = None, write: Callable[[Principal], str] = str, *, about: str | None = None
    ) -> str:
        """Return the command that explains it.

        `asker` are the options that say who asks (default: --principal), and `about` those for the type or the network.
        """
        if about is None:
            place = "--network" if isinstance(self.about, NetworkName) else "--type"
            about = f"{place} {quote(resource_text(self.about, write))}"
        who = f"--principal {quote(write(self.who))}" if asker is None else asker
        return " ".join(filter(None, (EXPLAIN, who, f"--right {self.right}", about)))

    def hint(self, command: str = "", revoked: Sequence[RevokedCertificate] = ()) -> str:
        """Return what to do next: run a command (default: one for anybody who has the certificates)."""
        with_files = "" if command else ", with --credential for each of its certificates,"
        run = f"run `{command or self.command()}`{with_files} to see which right is missing"
        last = last_revoked(revoked)
        return run if last is None else f"{last}; {run}"

    def refuse(self, code: str, why: str = "", **fields: object) -> RefusedError:
        """Return the refusal. `why` is added to the message: it must not say more than everybody may know."""
        return RefusedError(code, f"{self}{why and f': {why}'}", hint=self.hint(), lacked=self, **fields)

    def to_row(self) -> list[str]:
        """Return the right and what it is about as plain data, for whoever lacks it."""
        return [str(self.right), str(self.about)]

    @classmethod
    def from_row(cls, who: Principal, row: object) -> "LackedRight | None":
        """Read `to_row`; return None for anything else, such as a right that a later version adds."""
        match row:
            case [str(right), str(about)] if right in tuple(Right):
                try:
                    return cls(who, Right(right), _resource(Right(right), about))
                except MalformedError:
                    return None
        return None


def _resource(right: Right, text: str) -> Resource:
    if right.on_network:
        return NetworkName.parse(text)
    name = TypeName.parse(text)
    return name if "@" in text else name.key


def revoked_rows(revoked: Iterable[RevokedCertificate]) -> list[list[str | datetime | None]]:
    """Return revoked certificates as plain data."""
    return [[one.certificate, str(one.by), one.at] for one in revoked]


def read_revoked(rows: object) -> tuple[RevokedCertificate, ...]:
    """Read `revoked_rows`. Raises `MalformedError` (`protocol.malformed`, `principal.malformed`)."""
    found: list[RevokedCertificate] = []
    for row in rows if isinstance(rows, list) else ():
        match row:
            case [str(certificate), str(by), datetime() | None as at]:
                found.append(RevokedCertificate(certificate, Principal.parse(by), at))
            case _:
                raise MalformedError("protocol.malformed", "the broker's answer does not list revoked certificates")
    return tuple(found)
