"""The key groups that a node manages: what brokers ask, what policy changes, and what operators want."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from penstock.broker.core.core import Core
from penstock.broker.keys.claims import KeyClaims, KeyEvidence, KeyLook
from penstock.broker.keys.group import Refreshing
from penstock.broker.keys.log import KeyLog, KeyScribe, SealedLog
from penstock.broker.keys.manager import KeyManager
from penstock.broker.keys.manager_outputs import Output, Reply, Tell
from penstock.broker.keys.rights import Grounds
from penstock.broker.keys.transport import KeyTransport
from penstock.codec.wire import Wire
from penstock.crypto.wrapping import Secret
from penstock.errors import PenstockError
from penstock.model.instants import in_utc
from penstock.model.principals import Principal
from penstock.trust.key_statements import ANSWERED, KeyGroup, KeyRefusal, KeyRequest, KeyWish
from penstock.trust.signed import UnverifiedValue, sign_value


@dataclass(frozen=True, slots=True)
class Managing:
    """What a node needs to manage key groups: a log that replicas share, and the key under which secrets lie in it.

    It manages the types of its own principal, and those on which owners have granted it `keys`.
    """

    log: KeyLog
    kek: Secret
    replicas: frozenset[Principal] = frozenset()
    refreshing: Refreshing | None = None


class ManagedGroups:
    """See the module. `evidence` is what holders of keys have shown."""

    def __init__(
        self, core: Core, claims: KeyClaims, transport: KeyTransport, evidence: KeyEvidence, managing: Managing
    ) -> None:
        self._core = core
        self._claims = claims
        self._transport = transport
        self._evidence = evidence
        settings = core.settings
        self.manager = KeyManager(
            settings.key,
            managing.kek,
            claims.served,
            settings.random,
            replicas=managing.replicas,
            refreshing=managing.refreshing,
            skew=settings.trust.skew,
            limits=settings.limits,
        )
        self._scribe = KeyScribe(
            self.manager,
            SealedLog(managing.log, managing.kek, settings.random),
            core.now,
            send=self._send,
            failed=core.note,
            period=settings.limits.key_follow / 1000,
        )

    async def start(self) -> None:
        """Read the log. Raises what the log raises."""
        await self._scribe.start()

    async def stop(self) -> None:
        """Write nothing more to the log."""
        await self._scribe.stop()

    def tick(self, now: datetime) -> None:
        """Do what is due."""
        if self._evidence.due:
            self.review(now, None)
        self.tell(self.manager.tick(now)[0])

    def tell(self, outputs: Iterable[Output]) -> None:
        """Carry out what the manager wants done, in order."""
        self._scribe.put(outputs)

    def _send(self, output: Tell | Reply) -> None:
        group = output.group if isinstance(output, Tell) else output.value.value.word.group
        self._transport.publish(group, output.value)

    # What policy and operators say.

    def review(self, now: datetime, news: frozenset[Principal] | None) -> None:
        """Judge those who hold keys that are managed here: all of them, or those alone who show something else."""
        news = None if self._evidence.due else news
        holders = {group: self.manager.holders(group) for group in self.manager.groups()}
        everybody = frozenset().union(*holders.values())
        self._evidence.look(everybody)
        spared = self._evidence.unseen(everybody) | (frozenset() if news is None else everybody - news)
        look = KeyLook(self._claims)
        for group in holders:
            self.tell(self.manager.review(now, group, partial(self._grounds, look, group), spared))

    def _grounds(self, look: KeyLook, group: KeyGroup, broker: Principal) -> Grounds:
        return look.grounds(group, broker, self._evidence.of(broker))

    def groups(self) -> list[KeyGroup]:
        """Return the groups that have begun."""
        served = (group for group in self.manager.groups() if self._claims.served(group.type))
        return sorted(served, key=lambda group: group.scope)

    def rotate(self, group: KeyGroup) -> None:
        """Begin an epoch."""
        self.tell(self.manager.rotate(self._core.now(), group))

    def evict(self, group: KeyGroup, broker: Principal) -> None:
        """Take the key from a broker."""
        self.tell(self.manager.evict(self._core.now(), group, broker))

    def forget(self, before: datetime) -> None:
        """Forget epochs that were over before an instant, and begin the log again."""
        self.tell(self.manager.condense(self._core.now(), in_utc(before)))

    def status(self) -> dict[str, Wire]:
        """Return how many hold the keys of each group, as plain data."""
        return {group.scope: len(self.manager.holders(group)) for group in self.manager.groups()}

    # What brokers ask.

    def asked(self, now: datetime, request: UnverifiedValue[KeyRequest]) -> None:
        """Answer a request for keys that are managed here. Raises what the manager raises, if answered too."""
        value = request.value
        if not self._claims.served(value.group.type):
            return
        try:
            self.tell(self._answer(now, request))
        except PenstockError as error:
            # A replica that is behind does not know who is a member.
            certain = value.wish is not KeyWish.PATH or self.manager.was_evicted(value)
            if certain and error.code in ANSWERED.get(value.wish, ()):
                self._refuse(now, request, error.code)
            raise

    def _answer(self, now: datetime, request: UnverifiedValue[KeyRequest]) -> list[Output]:
        manager, value = self.manager, request.value
        match value.wish:
            case KeyWish.JOIN:
                said = manager.join(now, request, self._claims.joining(value.broker, value.group))
                self._evidence.joined(value.broker)
                return said
            case KeyWish.LEAVE:
                return manager.leave(now, request)
            case KeyWish.PATH:
                return manager.path(now, request)
            case KeyWish.REFRESH:
                return manager.refresh(now, request)
            case KeyWish.HISTORY:
                rights = manager.history_rights(now, value)
                grounds = self._claims.decided(value.broker, value.group, rights, value.credentials)
                return manager.history(now, request, grounds)

    def _refuse(self, now: datetime, request: UnverifiedValue[KeyRequest], code: str) -> None:
        """Tell whoever asked why it does not get it; a request that was not verified is refused for something else."""
        value, me = request.value, self._core.principal
        about = value.public or request.digest
        refusal = KeyRefusal(me, value.group, value.broker, about, code, in_utc(now))
        self._transport.publish(value.group, sign_value(refusal, self._core.settings.key))
