"""Push a domain's capabilities to brokers over a fabric (paper 5, section 6.5.2).

| topic | keys | content |
|---|---|---|
| `capabilities-<domain>` | the certificate | signed announcements: the certificate, or that it was withdrawn |

    (capability-announcement (domain <principal>) (id <certificate id>) (time <date>)
                             [(credentials <certificate> <signature>)])

The topic is reliable and keeps the last announcement of each certificate, so that brokers that start late receive them.
Correctness does not depend on that: everything is sent again now and then, and everything that arrives is verified.
A certificate that arrives grants nothing by itself: brokers reduce it like any other.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, ClassVar, Final, Self, TypeAlias

from penstock.authority.domain.domain_changes import check_certificate_id
from penstock.authority.domain.domain_state import DomainState, unverified
from penstock.authority.polls_network import Note, Sending, end, instant, listen, quiet
from penstock.codec.sexp import Form, ListForm, text
from penstock.crypto import Signer
from penstock.errors import RefusedError
from penstock.fabric import Clock, Fabric, Sample
from penstock.fabric.tasks import keep_running
from penstock.model.principals import Principal
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials, UnverifiedCredentials, collect_credentials
from penstock.trust.signed import Claim, parse_signed, sign_value

CAPABILITY_PREFIX: Final = "penstockacs"
"""The prefix of subjects on NATS servers."""

#: seconds after which everything is sent again
AGAIN: Final = 600.0

_CREDENTIALS: Final[ListForm[UnverifiedCredentials]] = ListForm(lambda bag: bag.to_sexp()[1:], collect_credentials)
_CERTIFICATE_ID: Final[Form[str]] = Form(str.encode, lambda value: check_certificate_id(text(value)))


def capabilities_topic(domain: Principal) -> str:
    """Return the topic of a domain's capabilities."""
    return f"capabilities-{domain.digest.hex()}"


@dataclass(frozen=True, slots=True)
class CapabilityAnnouncement(Claim):
    """A certificate that a domain issued or knows; without credentials it was withdrawn."""

    HEAD: ClassVar = b"capability-announcement"
    SIGNER: ClassVar = "domain"
    domain: Principal
    id: Annotated[str, _CERTIFICATE_ID]
    time: datetime
    credentials: Annotated[UnverifiedCredentials | None, _CREDENTIALS] = field(default=None, repr=False)


PushedCapability: TypeAlias = tuple[str, bool]
"""The id of a certificate, and whether it was withdrawn."""


def announced(state: DomainState) -> dict[PushedCapability, Certificate | None]:
    """Return what brokers should know: the certificates that count, and which ones were withdrawn."""
    found: dict[PushedCapability, Certificate | None] = {(one.id, False): one for one in state.credentials}
    return found | {(id_, True): None for id_ in state.revoked}


class CapabilityPush:
    """The service's end of the topic. `push` sends what is new, and what was withdrawn."""

    def __init__(self, fabric: Fabric, clock: Clock, signer: Signer, note: Note = quiet) -> None:
        self._clock = clock
        self._signer = signer
        self._sending = Sending(fabric, capabilities_topic(signer.principal), note)
        #: what was sent: ids, and whether the certificate was withdrawn
        self._sent: set[PushedCapability] = set()
        #: signed announcements, which are sent again as they are: a token takes its time for each signature
        self._signed: dict[PushedCapability, bytes] = {}
        self._all_at = clock.now()

    async def push(self, state: DomainState) -> int:
        """Send the differences since the last call, and now and then everything. Return how many were sent."""
        return await self.send(announced(state))

    async def send(self, wanted: Mapping[PushedCapability, Certificate | None]) -> int:
        """Send announcements as `push` does, withdrawals first.

        Those that could not be sent are sent with the next call.
        """
        if self._clock.now() - self._all_at >= AGAIN:
            self._all_at = self._clock.now()
            self._sent.clear()
        self._signed = {key: data for key, data in self._signed.items() if key in wanted}
        before = len(self._sent)
        for key in sorted(wanted.keys() - self._sent, key=lambda key: (not key[1], key[0])):
            if await self._sending.send(key[0].removeprefix("cert:"), await self._announcement(key, wanted[key])):
                self._sent.add(key)
        return len(self._sent) - before

    async def _announcement(self, key: PushedCapability, certificate: Certificate | None) -> bytes:
        if key not in self._signed:
            bag = None if certificate is None else unverified(Credentials.of(certificate))
            now = instant(self._clock).replace(microsecond=0)
            said = CapabilityAnnouncement(self._signer.principal, key[0], now, bag)
            self._signed[key] = (await asyncio.to_thread(sign_value, said, self._signer)).to_bytes()
        return self._signed[key]


class CapabilityFeed:
    """A broker's end of the topic. While it is entered, `credentials` has what the domain has announced.

    `changed` is called whenever they change.
    """

    def __init__(
        self, fabric: Fabric, domain: Principal, changed: Callable[[Credentials], None], note: Note = quiet
    ) -> None:
        self._fabric = fabric
        self._domain = domain
        self._changed = changed
        self._note = note
        #: the last announcement of each certificate; None if it was withdrawn
        self._known: dict[str, tuple[datetime, Certificate | None]] = {}
        #: when certificates end, the next one first, and the time of the newest announcement
        self._ends: list[tuple[datetime, str]] = []
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        topic = capabilities_topic(self._domain)
        work = partial(listen, self._fabric, topic, self.take, self._note)
        self._task = keep_running("reading capabilities", work)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            await end(self._task)

    @property
    def credentials(self) -> Credentials:
        """The announced certificates that were not withdrawn."""
        return Credentials(tuple(one for _, one in self._known.values() if one is not None))

    async def take(self, sample: Sample) -> None:
        """Verify an announcement and remember it.

        Raises `RefusedError` (`acs.announcement`) if it is not the domain's, and what reading and verifying it raise.
        """
        said = parse_signed(sample.data, CapabilityAnnouncement).verify().value
        found = () if said.credentials is None else said.credentials.verify().certificates
        if said.domain != self._domain or (said.credentials is not None and [one.id for one in found] != [said.id]):
            raise RefusedError(
                "acs.announcement",
                "an announcement by another domain, or with another certificate than it names",
                hint="check who can write to the topic",
            )
        known = self._known.get(said.id)
        # A withdrawal of the same second wins, and nothing undoes it.
        if known is not None and (known[1] is None or (said.time < known[0] and found)):
            return
        self._known[said.id] = (said.time, found[0] if found else None)
        self._newest = max(self._newest, said.time)
        if known is None and found and (ends := found[0].statement.validity.ends) is not None:
            heapq.heappush(self._ends, (ends, said.id))
        if known is None or not found:
            self._forget()
            self._changed(self.credentials)

    def _forget(self) -> None:
        """Drop certificates that had ended when the domain made its newest announcement, withdrawn or not.

        Short-lived ones are renewed again and again, and the domain's clock is the one that counts.
        """
        while self._ends and self._ends[0][0] < self._newest:
            self._known.pop(heapq.heappop(self._ends)[1], None)
