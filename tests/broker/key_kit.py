"""What the tests of key groups share: a type, rights on it, managers on one log, and members whose mail can be lost."""

from collections.abc import Coroutine, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import TypeVar

from tests.trust.kit import CURRENT, NOW, grant, key, who
from tests.trust.types_kit import PITO, PLATE, Registry

from penstock.broker.keys import node_keys
from penstock.broker.keys.group import Refreshing
from penstock.broker.keys.log import MemoryLog
from penstock.broker.keys.manager import KeyManager, Noted, Output, Reply, Sent, Tell
from penstock.broker.keys.member import Ask, ForgetKey, Hold, KeyMember, Opened, Resume
from penstock.broker.keys.member import Output as MemberOutput
from penstock.broker.limits import BrokerLimits
from penstock.crypto.hpke import SealingKey
from penstock.crypto.wrapping import Secret
from penstock.errors import RefusedError
from penstock.guard import CapabilityAuthority, Decision, EventRequest, decide
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.key_statements import NOT_MEMBER, KeyGroup, KeyRefusal, KeyRequest, KeyWish
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value
from penstock.trust.validity import Validity

DEFAULTS = BrokerLimits()

MANAGER, REPLICA = 50, 51
KEK = Secret(b"k" * 32)
SECOND = timedelta(seconds=1)
REFRESHING = replace(Refreshing.by(BrokerLimits()), period=600_000, blocks=1000, longest=1_200_000)
REGISTRY = Registry()
VERIFIED = REGISTRY.verify(REGISTRY.sign(PLATE))
GROUP = KeyGroup(PLATE.name.key)
PLATES = KeyGroup(PLATE.name.key, VERIFIED.event_type.by_name["numberplate"].id)
LANES = KeyGroup(PLATE.name.key, VERIFIED.event_type.by_name["lane"].id)
RIGHTS = (Right.PUBLISH, Right.SUBSCRIBE, Right.HISTORY)


T = TypeVar("T")


def at_once(coroutine: Coroutine[object, object, T]) -> T:
    """Return what comes of something that never waits, as a log in memory does not."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    raise AssertionError("it waits")


def carry_out(now: datetime, manager: KeyManager, log: MemoryLog, outputs: Iterable[Output]) -> list[Tell | Reply]:
    sent: list[Sent] = []
    at_once(node_keys.carry_out(lambda: now, manager, log, outputs, sent.append))
    return [output for output in sent if not isinstance(output, Noted)]


def catch_up(now: datetime, manager: KeyManager, log: MemoryLog) -> list[Output]:
    said: list[Output] = []
    at_once(node_keys.catch_up(lambda: now, manager, log, said.extend))
    return said


def at(seconds: float) -> datetime:
    return NOW + seconds * SECOND


def right(
    broker: int,
    *rights: Right,
    validity: Validity = CURRENT,
    attributes: Iterable[AttributeId] | None = None,
    version: str | None = None,
) -> Certificate:
    tag = event_tag(who(PITO), PLATE.name.name, version, rights or (Right.SUBSCRIBE,), attributes=attributes)
    return grant(PITO, broker, tag, validity=validity)


def grounds(
    broker: int, *certificates: Certificate, now: datetime = NOW, rights: tuple[Right, ...] = RIGHTS
) -> list[tuple[EventRequest, Decision]]:
    """Ask the door everything that may matter."""
    authority = CapabilityAuthority(Credentials.of(*certificates))
    requests = [EventRequest(who(broker), action, VERIFIED, now) for action in rights]
    return [(request, decide(request, [authority])) for request in requests]


def random(seed: int) -> Random:
    return Random(seed)  # noqa: S311  # the same each time


def manager(number: int = MANAGER, *, limits: BrokerLimits = DEFAULTS, seed: int | None = None) -> KeyManager:
    return KeyManager(
        key(number),
        KEK,
        lambda of_type: [PLATE.name] if of_type == PLATE.name.key else [],
        random(number if seed is None else seed).randbytes,
        replicas=(who(MANAGER), who(REPLICA)),
        refreshing=REFRESHING,
        limits=limits,
    )


def manages(_now: datetime, of_type: TypeKey, principal: Principal) -> bool:
    return of_type == PLATE.name.key and principal in (who(MANAGER), who(REPLICA))


def joining(broker: int, now: datetime = NOW, group: KeyGroup = GROUP) -> UnverifiedValue[KeyRequest]:
    public = SealingKey(lambda size: bytes([broker]) * size).public
    return sign_value(KeyRequest(KeyWish.JOIN, who(broker), group, now, 0, 0, public), key(broker)).unverified()


class Broker:
    """A member whose keys are kept as a broker keeps them."""

    def __init__(self, number: int, group: KeyGroup = GROUP, limits: BrokerLimits = DEFAULTS) -> None:
        self.number = number
        self.member = KeyMember(key(number), group, manages, random(number).randbytes, limits=limits)
        self.keys: dict[int, Secret] = {}
        #: every key that it ever had
        self.had: dict[int, Secret] = {}
        self.seals = False
        self.asks: list[SignedValue[KeyRequest]] = []

    def take(self, outputs: Iterable[MemberOutput]) -> list[str]:
        said = []
        for output in outputs:
            said.append(type(output).__name__.lower())
            match output:
                case Ask(request):
                    self.asks.append(request)
                case Opened(_, epoch, secret):
                    assert self.had.setdefault(epoch, secret) == secret
                    self.keys[epoch] = secret
                case ForgetKey(_, epoch):
                    del self.keys[epoch]
                case Hold():
                    self.seals = False
                case Resume():
                    self.seals = True
        return said


class WholeLog(MemoryLog):
    """A log that remembers what it should forget."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: list[bytes] = []

    async def append(self, number: int, record: bytes) -> bool:
        taken = await super().append(number, record)
        self.ever += [record] if taken else []
        return taken


class World:
    """Managers, a log, and brokers. What is sent to all can be lost for some."""

    def __init__(self, *numbers: int, group: KeyGroup = GROUP, limits: BrokerLimits = DEFAULTS) -> None:
        self.now = NOW
        self.group = group
        self.limits = limits
        self.log = WholeLog()
        self.manager = manager(limits=limits)
        self.certificates: dict[int, Certificate] = {}
        self.brokers: dict[int, Broker] = {}
        #: who has left; a manager that has only started may not take its word for it
        self.gone: set[int] = set()
        #: all that was sent to all
        self.told: list[Tell] = []
        self.deaf: set[int] = set()
        self.refusals: list[str] = []
        #: all that was answered
        self.replies: list[Reply] = []
        for number in numbers:
            self.join(number)

    @property
    def epoch(self) -> int:
        return self.manager._state(self.group).epoch

    def key(self) -> Secret:
        return self.manager._state(self.group).tree.key()

    def join(self, number: int, certificate: Certificate | None = None) -> Broker:
        self.certificates[number] = certificate or right(number)
        broker = self.brokers.setdefault(number, Broker(number, self.group, self.limits))
        self.gone.discard(number)
        broker.take(broker.member.join(self.now))
        self.post(number)
        return broker

    def leave(self, number: int) -> None:
        broker = self.brokers[number]
        self.gone.add(number)
        broker.take(broker.member.leave(self.now))
        self.post(number)

    def evict(self, number: int) -> None:
        self.run(self.manager.evict(self.now, self.group, who(number)))

    def rotate(self) -> None:
        self.run(self.manager.rotate(self.now, self.group))

    def post(self, number: int) -> None:
        """Bring a broker's requests to the manager."""
        broker = self.brokers[number]
        while broker.asks:
            request = broker.asks.pop(0)
            try:
                outputs = self.ask(number, request)
            except RefusedError as error:
                self.refusals.append(error.code)
                if error.code == NOT_MEMBER and self.manager.was_evicted(request.value):
                    refusal = sign_value(self.refusal(request), key(MANAGER))
                    broker.take(broker.member.refused(self.now, refusal.unverified()))
            else:
                self.run(outputs)

    def refusal(self, request: SignedValue[KeyRequest], code: str = NOT_MEMBER) -> KeyRefusal:
        value = request.value
        about = value.public or request.digest
        return KeyRefusal(who(MANAGER), value.group, value.broker, about, code, self.now)

    def ask(self, number: int, request: SignedValue[KeyRequest]) -> list[Output]:
        unverified = request.unverified()
        certificate = self.certificates[number]
        shown = grounds(number, certificate, now=self.now)
        match request.value.wish:
            case KeyWish.JOIN:
                return self.manager.join(self.now, unverified, shown)
            case KeyWish.LEAVE:
                return self.manager.leave(self.now, unverified)
            case KeyWish.PATH:
                return self.manager.path(self.now, unverified)
            case KeyWish.REFRESH:
                return self.manager.refresh(self.now, unverified)
            case KeyWish.HISTORY:
                return self.manager.history(self.now, unverified, shown)

    def run(self, outputs: Iterable[Output]) -> None:
        self.send(carry_out(self.now, self.manager, self.log, outputs))

    def send(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            match output:
                case Tell(_, value):
                    self.told.append(output)
                    for number, broker in self.brokers.items():
                        if number not in self.deaf:
                            broker.take(broker.member.receive(self.now, value.unverified()))
                case Reply(principal, answer):
                    self.replies.append(output)
                    broker = next(one for one in self.brokers.values() if key(one.number).principal == principal)
                    try:
                        broker.take(broker.member.receive(self.now, answer.unverified()))
                    except RefusedError as error:
                        # An answer to somebody who has left in the meantime.
                        self.refusals.append(error.code)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds * SECOND
        self.run(self.manager.tick(self.now)[0])
        for number, broker in self.brokers.items():
            broker.take(broker.member.tick(self.now)[0])
            self.post(number)

    def restart(self, number: int = MANAGER) -> None:
        """Lose the manager, and start another one from the log."""
        self.manager = manager(number, limits=self.limits, seed=number + self.log_length)
        assert catch_up(self.now, self.manager, self.log) == []

    @property
    def log_length(self) -> int:
        return self.log.first + len(self.log.records)

    def members(self) -> set[int]:
        state = self.manager._state(self.group)
        return {number for number in self.brokers if who(number) in state.members}
