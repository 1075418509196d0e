"""The validity statements of a node: it follows the issuers that certificates name, and decides again when they speak.

Decisions ask `check` about certificates with on-line tests. An answer ends with its statement, so sessions are decided
again then, by later statements if there are any. If the state of a certificate that was asked about changes before
that, everything is decided again immediately.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.broker.core.core import Core
from penstock.broker.evolution.gossip import Send
from penstock.broker.evolution.validity import ValidityNetwork, ValidityTree
from penstock.broker.fabric.validity import ValidityTopics
from penstock.broker.node.machine import Machine
from penstock.broker.node.policies import Forgetful, Keep, SnapshotWriter, Told
from penstock.codec.sexp import canonical
from penstock.codec.wire import Wire
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.instants import in_utc
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials
from penstock.trust.policy_state import open_values, seal_values
from penstock.trust.signed import SignedValue
from penstock.trust.statement_book import AskedCertificates, RevokingStatement, StatementBook
from penstock.trust.statements import (
    NONCE_BYTES,
    SUCCEEDING,
    VALIDITY_TOPIC,
    Heartbeat,
    OneTimeAnswer,
    OneTimeQuestion,
    OnlineKind,
    OnlineTerms,
    TimedStatement,
    ValidityClaim,
    read_validity_statement,
)
from penstock.trust.validity import OnlineTest, Validity

AskInstance: TypeAlias = Callable[[bytes], None]
"""Sends an issuer's instance a one-time question, or nothing: it should publish a new statement."""


class NodeValidity:
    """See the module. It is the `ValidityBook` of its network: a tree over links, or topics of a fabric."""

    def __init__(self, core: Core, keep: Keep, send: Send, machine: Machine) -> None:
        self._core = core
        self._keep = keep
        background = None if isinstance(keep, Forgetful) else machine.background()
        self._writer = SnapshotWriter(keep.save_statements, self._snapshot, background)
        #: the issuers of heartbeats that are not stored yet
        self._unsaved: set[Principal] = set()
        self._random = core.settings.random
        self.book = StatementBook(core.principal)
        self.tree = ValidityTree(self, self._parent, machine.timer, send, core.settings.limits)
        self._topics = ValidityTopics(core, self, machine.timer)
        self._network: ValidityNetwork = self._topics if core.on_fabric else self.tree
        #: the certificates that were asked about, and how many of them are too many
        self._asked = AskedCertificates(self.book)
        self._most = core.settings.limits.cache_entries
        self._followed: set[Principal] = set()
        #: the successors in each issuer's last statement of a kind, and in its last answer about a certificate
        self._successors: dict[tuple[Principal, bytes, str], Credentials] = {}
        self._instances: dict[Principal, dict[str, AskInstance]] = {}
        #: set whenever something has arrived, or is known not to exist
        self._news = asyncio.Event()
        self._unknown: set[Principal] = set()
        #: set whenever a statement has arrived
        self._turns_changed = asyncio.Event()

    def _parent(self, issuer: Principal) -> Principal | None:
        core = self._core
        return core.router.view.parent(TypeKey(issuer, VALIDITY_TOPIC), core.may_route)

    # Decisions.

    def check(self, test: OnlineTest, certificate: str, now: datetime) -> Validity:
        """Return for how long an on-line test holds: the node's `OnlineChecker`. Raises as `StatementBook.check`."""
        terms = OnlineTerms.of(test)
        self._asked.ask(terms, certificate, now)
        if len(self._asked) > self._most:
            # Anybody can show certificates. Those in use are not forgotten, however many there are.
            most = self._core.settings.limits.cache_entries
            self._asked.forget(self._live(), most // 2)
            self._most = max(most, 2 * len(self._asked))
        if terms.signer not in self._followed:
            asyncio.get_running_loop().call_soon(self._follow, terms.signer)
        return self.book.check(test, certificate, now)

    def _follow(self, issuer: Principal) -> None:
        if issuer not in self._followed:
            try:
                self._network.follow(issuer)
            except PenstockError as error:
                self._core.note(error)
            else:
                self._followed.add(issuer)

    async def gather(self, bag: Credentials, statements: Sequence[bytes] = ()) -> None:
        """Take the statements that a peer brings, and wait for those that its certificates need besides.

        Return after `BrokerLimits.statement_wait` at the latest, or as soon as the others are known not to exist.
        """
        if not any(certificate.statement.validity.online for certificate in bag):
            return
        core = self._core
        self._take_brought(bag, statements)
        self._unknown -= {terms.signer for terms, _ in self._needed(bag)}
        with suppress(TimeoutError):
            async with asyncio.timeout(core.settings.limits.statement_wait / 1000):
                while any(terms.signer not in self._unknown for terms, _ in self._missing(bag)):
                    self._news.clear()
                    for terms, certificate in self._missing(bag):
                        self._follow(terms.signer)
                        self._ask(terms, certificate)
                    if any(self._missing(bag)):
                        await self._news.wait()

    def _needed(self, bag: Credentials) -> Iterator[tuple[OnlineTerms, str]]:
        for certificate in bag:
            for test in certificate.statement.validity.online:
                with suppress(PenstockError):
                    yield OnlineTerms.of(test), certificate.id

    def _missing(self, bag: Credentials) -> Iterator[tuple[OnlineTerms, str]]:
        now = self._core.now()
        for terms, certificate in self._needed(bag):
            if self.book.status(terms, certificate, now).missing:
                yield terms, certificate

    def _ask(self, terms: OnlineTerms, certificate: str) -> None:
        """Ask a one-time question, if it is due."""
        now = self._core.now()
        if terms.kind is OnlineKind.ONE_TIME and self.book.is_due(terms, certificate, now):
            try:
                self._network.ask(self.book.ask(terms, certificate, self._random(NONCE_BYTES), now))
            except PenstockError as error:
                self._core.note(error)

    def tick(self) -> None:
        """Process what is due: trees that have changed, statements that have begun, questions to be asked again."""
        now = self._core.now()
        self.book.purge(now)
        self._network.tick()
        if self._asked.questions():
            self._asked.forget_questions(self._live())
            for terms, certificate in self._asked.questions():
                self._ask(terms, certificate)
        for issuer in self._asked.issuers():
            self._shift(issuer)

    async def rest(self, pause: float) -> None:
        """Wait for so many seconds, but not beyond the beginning or end of a statement, even if it arrives later."""
        loop, core = asyncio.get_running_loop(), self._core
        end = loop.time() + pause
        while (left := end - loop.time()) > 0:
            turn = self.book.turns(core.now())
            first = left if turn is None else min(left, max(_BRIEF, (turn - core.now()) / timedelta(seconds=1)))
            self._turns_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(first):
                    await self._turns_changed.wait()
                    continue
            return

    def _live(self) -> frozenset[str]:
        """Return the certificates that sessions, other brokers, types and this broker use."""
        core = self._core
        away = map(core.roster.credentials, core.roster)
        sources = (core.sources.credentials, core.sources.successors)
        bags = (*sources, *core.disclosed.values(), *away, *core.local.shown())
        shown = frozenset(one.id for bag in bags for one in bag if one.statement.validity.online)
        return shown | core.library.certificates()

    def _shift(self, issuer: Principal) -> bool:
        """Decide again what depends on certificates whose state has changed since they were asked about."""
        changed = self._asked.changed(issuer, self._core.now())
        if changed:
            self._core.online_changed(changed)
        self._record_revoked()
        return bool(changed)

    def _record_revoked(self) -> None:
        """Record revocations that are carried out now, each order separately. Raises what recording raises."""
        orders: dict[bytes, tuple[RevokingStatement, set[str]]] = {}
        for issuer, certificate in self._asked.revoked:
            statement = self.book.revoked_by(issuer, certificate, self._core.now())
            if statement is not None:
                orders.setdefault(statement.digest, (statement.value, set()))[1].add(certificate)
        for digest, (value, certificates) in orders.items():
            ordered = value.not_before if isinstance(value, TimedStatement) else value.time
            order = f"{value.issuer}/{digest.hex()}"
            self._core.recorder.revoked(value.issuer, order, tuple(sorted(certificates)), ordered)
        self._asked.revoked.clear()

    def _serves_brokers(self, issuer: Principal) -> bool:
        """Return whether the rights of brokers depend on an issuer's statements."""
        bags = (self._core.sources.credentials, *self._core.disclosed.values())
        return any(terms.signer == issuer for bag in bags for terms, _ in self._needed(bag))

    def arrived(self, event: TransitEvent) -> None:
        """Take an event of an issuer's topic, on a fabric."""
        self._topics.arrived(event)

    # Clients.

    def hand_in(self, client: Principal, signed: bytes, told: Told | None = None) -> None:
        """Process a statement that a client brings: the issuer itself, or a holder of certificates that need it.

        Raises `MalformedError`, `RefusedError` (`evolution.*`, `statement.*`), `LimitError`.
        """
        unverified = read_validity_statement(signed)
        issuer = unverified.value.issuer
        if client == issuer:
            self._network.offer(issuer)
        elif not self._network.follows(issuer):
            raise RefusedError(
                "evolution.not-followed",
                f"no certificate here needs statements of {issuer.short}",
                hint="show the certificate first, or connect as the issuer",
            )
        self._publish(unverified.verify(), told)

    def _take_brought(self, bag: Credentials, statements: Sequence[bytes]) -> None:
        """Take the statements of a hello that its certificates need. Those that do not count are ignored."""
        needed = {terms.signer for terms, _ in self._needed(bag)}
        for data in statements:
            with suppress(PenstockError):
                unverified = read_validity_statement(data)
                if unverified.value.issuer in needed:
                    self._follow(unverified.value.issuer)
                    self._publish(unverified.verify())

    def _publish(self, statement: SignedValue[ValidityClaim], told: Told | None = None) -> None:
        if isinstance(statement.value, OneTimeAnswer) or self.take(statement):
            self._network.publish(statement)
        if told is not None:
            if statement.value.issuer in self._writer:
                self._writer.save(statement.value.issuer, told)
            else:
                told(None)

    def serve(self, issuer: Principal, session: str, ask: AskInstance) -> None:
        """Let a client answer for itself as an issuer: it gets one-time questions, and requests for statements."""
        self._instances.setdefault(issuer, {})[session] = ask
        self._network.offer(issuer)

    def left(self, issuer: Principal, session: str) -> None:
        """Process that a client has gone."""
        sessions = self._instances.get(issuer)
        if sessions is not None and sessions.pop(session, None) is not None and not sessions:
            del self._instances[issuer]
            self._network.withdraw(issuer)

    # The `ValidityBook` port.

    def held(self, issuer: Principal) -> Iterable[SignedValue[ValidityClaim]]:
        """Return the issuer's verified statements that can be passed on."""
        return tuple(self.book.statements(issuer))

    def is_current(self, issuer: Principal) -> bool:
        """Return whether one of the issuer's statements counts now, and nothing is missing that was asked about."""
        now = self._core.now()
        return self.book.is_current(issuer, now) and not self._asked.misses(issuer, now)

    def take(self, statement: SignedValue[ValidityClaim]) -> bool:
        """Take a verified statement; return whether it is new. Raises as `StatementBook.take`."""
        new = self.book.take(statement, self._core.now())
        if new:
            self._succeed(statement.value)
            self._news.set()
            self._turns_changed.set()
            self._core.counts["statements"] += 1
            self._store(statement.value)
            if not self._shift(statement.value.issuer) and self._serves_brokers(statement.value.issuer):
                # Key managers write down until when brokers have rights, and evict them then.
                self._core.trust_changed()
        return new

    def _succeed(self, value: ValidityClaim) -> None:
        """Use the certificates that an issuer gives in the place of others, those of its last statement of a kind."""
        about = value.certificate if isinstance(value, OneTimeAnswer) else ""
        place, core, found = (value.issuer, value.HEAD, about), self._core, Credentials()
        try:
            if isinstance(value, SUCCEEDING):
                found = value.successors.verify(core.certificates)
            others = self._other_successors(place)
            if others + len(found) > core.settings.limits.cache_entries:
                self._drop_expired()
                others = self._other_successors(place)
            if others + len(found) > core.settings.limits.cache_entries:
                raise LimitError("statement.limit", "there are too many successors of certificates")
        except PenstockError as error:
            # The statement counts in any case: it may revoke something.
            core.note(error)
            found = Credentials()
        if not len(found) and place not in self._successors:
            return
        self._successors[place] = found
        bags = self._successors.values()
        successors = Credentials.of(*{one.id: one for bag in bags for one in bag}.values())
        core.change_sources(replace(core.sources, successors=successors))

    def _other_successors(self, place: tuple[Principal, bytes, str]) -> int:
        return sum(len(bag) for other, bag in self._successors.items() if other != place)

    def _drop_expired(self) -> None:
        """Drop successors that have expired. Only for lack of room: a clock may have jumped ahead."""
        now = self._core.now()
        for place, bag in list(self._successors.items()):
            ends = [one.statement.validity.ends for one in bag]
            if all(end is not None and end < now for end in ends):
                del self._successors[place]

    def asked(self, issuer: Principal) -> None:
        """Ask the issuer's instances here for a new statement."""
        for ask in list(self._instances.get(issuer, {}).values()):
            ask(b"")

    def questioned(self, question: OneTimeQuestion) -> None:
        """Pass a one-time question to one of the issuer's instances here."""
        for ask in list(self._instances.get(question.issuer, {}).values())[:1]:
            ask(canonical(question.to_sexp()))

    def unknown(self, issuer: Principal) -> None:
        """Record that nobody has a statement of an issuer."""
        self._unknown.add(issuer)
        self._news.set()

    # Storage.

    def start(self) -> None:
        """Go on with the stored statements. Raises what the keep raises, and as `StatementBook.restore`."""
        core, now = self._core, self._core.now()
        for data in self._keep.load_statements():
            issuer, values = open_values(data, core.principal)
            try:
                statements = self.book.restore(values, now)
            except LimitError as error:
                # There were not so many issuers together, unless the clock was wrong. Later statements are refused too.
                core.note(error)
                continue
            if self.book.is_over(issuer, now - _FORGOTTEN):
                self.book.forget(issuer)
                self._keep.save_statements(issuer, b"")
                continue
            for statement in statements:
                self._succeed(statement.value)

    async def stop(self, patience: float) -> None:
        """Store the last heartbeats; report it to operators if that takes longer than `patience` seconds."""
        for issuer in list(self._unsaved):
            self._writer.save(issuer, self._saved)
        try:
            await self._writer.finish(patience)
        except PenstockError as error:
            self._core.note(error)

    def _store(self, value: ValidityClaim) -> None:
        """Store an issuer's statements, so that older ones cannot replace them after a restart.

        A heartbeat is stored when the broker stops, or with other statements: an older one ends no later, and does not
        revive what a stored revocation lists. One-time answers are not stored.
        """
        if isinstance(value, Heartbeat):
            self._unsaved.add(value.issuer)
        elif not isinstance(value, OneTimeAnswer):
            self._writer.save(value.issuer, self._saved)

    def _saved(self, error: PenstockError | None) -> None:
        if error is not None:
            self._core.note(error)

    def _snapshot(self, issuer: Principal) -> bytes:
        self._unsaved.discard(issuer)
        return seal_values(issuer, self.book.remember(issuer), in_utc(self._core.now()), self._core.settings.key)

    # Status.

    def status(self) -> dict[str, Wire]:
        """Return the statements of each followed issuer for operators, as plain data."""
        now = self._core.now()
        return {
            str(issuer): {
                "current": self.book.is_current(issuer, now),
                "statements": [str(statement.value.HEAD.decode()) for statement in self.book.statements(issuer)],
                "instances": len(self._instances.get(issuer, {})),
            }
            for issuer in sorted(self._followed | set(self.book.issuers()))
        }


#: seconds of a rest at least, if nothing arrives
_BRIEF: Final = 0.01
#: statements that have ended for longer than this are not restored: until then the clock may be wrong
_FORGOTTEN: Final = timedelta(days=1)
