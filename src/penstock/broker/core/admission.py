"""Admission: read the credentials that peers show in short turns, within a budget for each peer.

Work is counted in units. Reading a byte costs one unit; `penstock.trust.credentials` says what signatures cost.

    a stranger   has not shown credentials yet. All strangers together get `stranger_work` units a second, the lightest
                 first, and one stranger gets at most `hello_work`. Only certificates that chain from a principal that
                 the broker trusts are verified: others cannot give a stranger the right to connect.
    a member     may connect. It gets `member_work` units a second, and `disclosure_work` for one bag of credentials.

A bag that was read for a member is cached: to show the same bytes again costs no units. But a principal's rights are
decided, and written to the decision log, at each hello and each disclosure. So a principal can do that `admission_rate`
times a second, and `admission_burst` times in a burst. If it does so more often, it waits for its turn. It is refused
if that would take longer than `admission_wait`.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from math import ceil
from typing import Final

from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.link import Rate
from penstock.errors import RefusedError
from penstock.model.principals import Principal
from penstock.trust.caches import Recent
from penstock.trust.credentials import BagReading, CertificateVerifier, Credentials
from penstock.trust.limits import TrustLimits

#: units in one turn: about two milliseconds
TURN: Final = 8_192
#: the least units that a bag costs
_LEAST: Final = 500
#: seconds for others after a turn: several times as long as the turn took
_REST: Final = 0.008
#: bytes of cached bags
_KEPT_BYTES: Final = 16 << 20
_NOTHING: Final = Credentials()


class StrangersQueue:
    """The strangers that wait for a turn of work: a number of units a second, the lightest stranger first."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._rate = Rate(limits.stranger_work, limits.stranger_burst)
        self._most = limits.handshake_pending
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._not_before = 0.0
        self._timer: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def turn(self, weight: int) -> None:
        """Wait for a turn. Raises `RefusedError` (`link.busy`) if too many lighter strangers wait."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._not_before <= loop.time():
            return
        mine = (weight, next(self._numbers), loop.create_future())
        heapq.heappush(self._waiting, mine)
        if len(self._waiting) > self._most:
            heaviest = max(self._waiting, key=lambda one: one[:2])
            self._drop(heaviest)
            if not heaviest[2].done():
                heaviest[2].set_exception(_busy())
        self._plan()
        try:
            await mine[2]
        finally:
            self._drop(mine)

    def spent(self, units: int) -> None:
        """Charge the units that a turn took."""
        now = asyncio.get_running_loop().time()
        rest = _REST if units >= TURN else 0.0
        self._not_before = now + max(rest, self._rate.charge(units, now))

    def _drop(self, one: tuple[int, int, asyncio.Future[None]]) -> None:
        if one in self._waiting:
            self._waiting.remove(one)
            heapq.heapify(self._waiting)

    def _plan(self) -> None:
        if self._timer is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._not_before - loop.time()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._not_before <= loop.time():
            while self._waiting:
                _, _, lightest = heapq.heappop(self._waiting)
                if not lightest.done():
                    lightest.set_result(None)
                    break
        # After the turn that was given, which charges its units first.
        loop.call_soon(self._plan)


class MemberPace:
    """The turns of work for one member: a number of units a second, with time for others in between."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._rate = Rate(limits.member_work, limits.member_burst)
        self._pause = 0.0
        self._admissions = Rate(limits.admission_rate, limits.admission_burst)
        self._longest = limits.admission_wait / 1000

    async def admission(self) -> None:
        """Wait until the principal's rights may be decided again. Raises `RefusedError` (`admission.rate`)."""
        now = asyncio.get_running_loop().time()
        wait = self._admissions.charge(1, now)
        if wait > self._longest:
            # A refused principal has not used a turn.
            self._admissions.charge(-1, now)
            raise RefusedError(
                "admission.rate",
                "this principal connects or discloses credentials too often",
                hint=f"try again in {ceil(wait)} seconds, and keep one connection instead of making many",
            )
        await asyncio.sleep(wait)

    async def turn(self, _weight: int) -> None:
        """Wait for a turn."""
        await asyncio.sleep(self._pause)

    def spent(self, units: int) -> None:
        """Charge the units that a turn took."""
        rest = _REST if units >= TURN else 0.0
        self._pause = max(rest, self._rate.charge(units, asyncio.get_running_loop().time()))


@dataclass(frozen=True, slots=True)
class CredentialBudget:
    """How much of a bag to read: whose certificates may matter, and whether they permit the principal to connect."""

    trusted: Callable[[], Iterable[Principal]]
    permitted: Callable[[Credentials], Awaitable[bool]]


class Admission:
    """See the module."""

    def __init__(self, verifier: CertificateVerifier, limits: BrokerLimits) -> None:
        self._verifier = verifier
        self._limits = limits
        # One certificate is read in one turn.
        self._read = TrustLimits(sexp_bytes=limits.certificate_bytes, sexp_nodes=limits.certificate_nodes)
        self.strangers = StrangersQueue(limits)
        self._paces: Recent[Principal, MemberPace] = Recent(limits.cache_entries)
        self._known: Recent[bytes, Credentials] = Recent(limits.cache_entries, _KEPT_BYTES)

    async def hello(self, principal: Principal, shown: bytes, asked: CredentialBudget) -> Credentials:
        """Return the credentials in a hello, verified; only a part of them if they do not permit to connect.

        Raises `MalformedError` and `RefusedError` (`cert.*`, `key.*`, `sexp.*`), and `RefusedError` (`admission.work`,
        `admission.rate`, `link.busy`).
        """
        pace = self._pace(principal)
        await pace.admission()
        try:
            async with asyncio.timeout(self._limits.handshake_time / 1000):
                known, reading = await self._reached(shown, asked, self._limits.hello_work, self.strangers)
        except TimeoutError:
            raise _busy() from None
        return await self._rest(known, reading, shown, asked, pace)

    async def relayed(self, peer: Principal, shown: bytes, asked: CredentialBudget) -> Credentials:
        """Return a broker's credentials that a peer has passed on, verified. The peer is charged for the work.

        Raises as `hello` does, except `admission.rate` and `link.busy`.
        """
        pace = self._pace(peer)
        known, reading = await self._reached(shown, asked, self._limits.disclosure_work, pace)
        return await self._rest(known, reading, shown, asked, pace)

    async def disclosed(self, principal: Principal, shown: bytes) -> Credentials:
        """Return the credentials that a member discloses, verified. Raises as `hello` does, except `link.busy`."""
        pace = self._pace(principal)
        await pace.admission()
        known = self._recall(shown)
        if known is not None:
            return known
        reading = BagReading(shown, self._verifier, limits=self._read)
        await self._work(reading.scan(), self._limits.disclosure_work, pace)
        return await self._finish(shown, reading, pace)

    async def _reached(
        self, shown: bytes, asked: CredentialBudget, budget: int, pace: StrangersQueue | MemberPace
    ) -> tuple[Credentials, BagReading | None]:
        """Return the credentials of a bag that may matter, verified, and its reader; None if the bag is cached."""
        known = self._recall(shown)
        if known is not None:
            return known, None
        reading = BagReading(shown, self._verifier, limits=self._read)
        await self._work(reading.scan(), budget, pace, len(shown))
        await self._work(reading.reach(asked.trusted()), budget, pace, len(shown))
        return reading.credentials, reading

    async def _rest(
        self, known: Credentials, reading: BagReading | None, shown: bytes, asked: CredentialBudget, pace: MemberPace
    ) -> Credentials:
        if reading is None or not await asked.permitted(known):
            return known
        return await self._finish(shown, reading, pace)

    async def _finish(self, shown: bytes, reading: BagReading, pace: MemberPace) -> Credentials:
        await self._work(reading.finish(), self._limits.disclosure_work, pace)
        found = reading.credentials
        self._known.put(sha256(shown).digest(), found, len(shown))
        return found

    def _recall(self, shown: bytes) -> Credentials | None:
        return self._known.get(sha256(shown).digest()) if shown else _NOTHING

    def _pace(self, principal: Principal) -> MemberPace:
        pace = self._paces.get(principal)
        if pace is None:
            pace = MemberPace(self._limits)
            self._paces.put(principal, pace)
        return pace

    async def _work(
        self, steps: Iterable[int], budget: int, pace: StrangersQueue | MemberPace, weight: int = 0
    ) -> None:
        """Take steps, with turns for others in between. Raises what the steps raise, and `admission.work`."""
        spent, turn = 0, _LEAST
        await pace.turn(weight)
        try:
            for units in steps:
                spent += units
                turn += units
                if spent > budget:
                    raise RefusedError(
                        "admission.work",
                        "these credentials are more work than is done for one peer",
                        hint="show the certificates that give the right to connect, and disclose others afterwards",
                        limit=budget,
                    )
                if turn >= TURN:
                    pace.spent(turn)
                    turn = 0
                    await pace.turn(weight)
        finally:
            pace.spent(turn)


def _busy() -> RefusedError:
    return RefusedError(
        "link.busy", "too many others show their credentials now", hint="try again later, or connect to another broker"
    )
