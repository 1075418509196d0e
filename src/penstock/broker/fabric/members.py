"""Who is in a network on a fabric: each broker says so on a topic of the network, under its principal.

What a broker says is signed, numbered and timed, and holds what it discloses. It is renewed now and then; who does not
renew it is forgotten, and so is who says goodbye, or may be in the network no longer.

A broker that starts, or has missed something, asks the others for the policy that they know: `waiting` are those who
have not answered.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import ClassVar, Final, TypeAlias

from penstock.broker.core.core import Core
from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.membership import AnnouncementProof
from penstock.broker.wire.plain_trees import malformed, principal_tree, read_principal
from penstock.codec.wire import decode, encode
from penstock.crypto.keys import digest
from penstock.errors import LimitError, RefusedError
from penstock.fabric import Fabric, Sample
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX

# ----------------------------------------------------------------------------------------------------------------------
# Samples: messages of a broker to all others, across a fabric that nobody has to trust.
#
# Layout: a list of origin, incarnation, number, time, body and proof.
#
# The proof is the origin's public key and its signature over a label, the network, the topic, and everything else; one
# signature stands for all events in the body. Numbers of an origin rise on each topic, so that what comes twice or out
# of order is refused (`Succession`), and what is missing is counted.


LABEL: Final = b"penstock-sample-1"


@dataclass(frozen=True, slots=True)
class SignedSample:
    """See the module. Nothing that was read is true before `verify`."""

    origin: Principal
    incarnation: int
    number: int
    time: datetime
    body: bytes = field(repr=False)
    proof: bytes = field(default=b"", repr=False)

    def sign(self, topic: str, proof: AnnouncementProof) -> "SignedSample":
        """Return the same, with this broker's proof for one topic."""
        return replace(self, proof=proof.sign(self._words(topic)))

    def verify(self, topic: str, proof: AnnouncementProof) -> None:
        """Check that the origin said this, on this topic. Raises `RefusedError` (`network.proof`)."""
        proof.verify(self.origin, self._words(topic), self.proof)

    def _words(self, topic: str) -> bytes:
        order = (str(self.incarnation).encode(), str(self.number).encode(), self.time.isoformat().encode())
        return digest((LABEL, topic.encode(), self.origin.digest, *order, sha256(self.body).digest()))

    def to_bytes(self) -> bytes:
        """Return the bytes that cross the fabric."""
        origin = principal_tree(self.origin)
        return encode([origin, self.incarnation, self.number, self.time, self.body, self.proof])

    @classmethod
    def from_bytes(cls, octets: bytes) -> "SignedSample":
        """Read bytes. Raises `MalformedError` and `LimitError`."""
        tree = decode(octets)
        if type(tree) is not list or tuple(map(type, tree)) != cls._FORM:
            malformed("a sample")
        origin, incarnation, number, time, body, proof = tree
        if not (0 <= incarnation <= INTEGER_MAX and 0 <= number <= INTEGER_MAX):  # type: ignore[operator]  # of the form
            malformed("the counts of a sample")
        return cls(read_principal(origin), incarnation, number, time, body, proof)  # type: ignore[arg-type]  # so too

    #: the kinds of what stands in a tree
    _FORM: ClassVar = (bytes, int, int, datetime, bytes, bytes)


class Succession:
    """What came last of each origin on each topic. The memory is bounded, the least recent being forgotten first."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._most = limits.route_streams
        self._last: OrderedDict[tuple[str, Principal], tuple[int, int]] = OrderedDict()

    def is_new(self, topic: str, sample: SignedSample) -> bool:
        """Say whether a sample follows those that came, whoever may have made it."""
        last = self._last.get((topic, sample.origin))
        return last is None or (sample.incarnation, sample.number) > last

    def take(self, topic: str, sample: SignedSample) -> int:
        """Take in a sample that was verified; return how many are missing before it.

        Raises `RefusedError` (`network.replay`) when it came before, or a later one did.
        """
        name, order = (topic, sample.origin), (sample.incarnation, sample.number)
        last = self._last.get(name)
        if last is not None and order <= last:
            raise RefusedError(
                "network.replay", f"a sample of {sample.origin.short} came twice, or too late", hint="watch the fabric"
            )
        self._last[name] = order
        self._last.move_to_end(name)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        # What was said before anybody listened is not missing.
        return order[1] - last[1] - 1 if last is not None and last[0] == order[0] else 0


# ----------------------------------------------------------------------------------------------------------------------
# Who is in a network on a fabric: each broker says so on a topic of the network, under its principal.


#: the first byte of what a broker says of itself: it is here; it is here and asks the others for the policy that they
#: know; it is here and has written what it knows of policy; it goes
_HERE, _ASKS, _ANSWERS, _GONE = b"+", b"?", b"!", b"-"
#: seconds for which nobody looks again for a broker that was not found
_LOOKING: Final = 1.0

Say: TypeAlias = Callable[[str, str, bytes], None]
"""Writes to a topic that keeps it, under a key."""


def network_topic(network: NetworkName) -> str:
    """Return the topic on which the brokers of a network make themselves known."""
    return digest((b"network", network.owner.digest, network.name.encode())).hex()


def check_future(core: Core, told: SignedSample, now: datetime) -> None:
    """Check that a sample is not from the future. Raises `RefusedError` (`network.future`)."""
    if told.time > now + core.settings.trust.skew:
        raise RefusedError(
            "network.future",
            f"a sample of {told.origin.short} lies in the future",
            hint="set the clocks, or allow for more skew",
        )


class FabricMembers:
    """See the module. Times are seconds: between two signs of life, and until a broker without one is forgotten."""

    def __init__(self, core: Core, proof: AnnouncementProof, say: Say, *, renewal: float, absence: float) -> None:
        self._core = core
        self._proof = proof
        self._say = say
        self._renewal = timedelta(seconds=renewal)
        self._absence = timedelta(seconds=absence)
        self.topic = network_topic(core.settings.network)
        #: rises from start to start of this broker
        self.incarnation = int(core.now().timestamp() * 1000)
        self._number = 0
        self._shown: tuple[bytes, datetime] | None = None
        #: when each of the others has last given a sign of life
        self._others: dict[Principal, datetime] = {}
        self._succession = Succession(core.settings.limits)
        self._looked: dict[Principal, float] = {}
        #: brokers that were asked, and have neither answered nor gone
        self.waiting: set[Principal] = set()
        #: set when another broker asks, and when one of those that are waited for has answered or gone
        self.asked, self.heard = asyncio.Event(), asyncio.Event()

    def __contains__(self, broker: Principal) -> bool:
        return broker in self._others

    def all(self) -> list[Principal]:
        """Return the brokers of the network, this one among them."""
        return sorted((self._core.principal, *self._others))

    # This broker.

    def appear(self) -> None:
        """Say that this broker is there, where that is due: what it discloses has changed, or time has passed."""
        core, now = self._core, self._core.now()
        octets = core.shown()
        if self._shown is not None and self._shown[0] == octets and abs(now - self._shown[1]) < self._renewal:
            return
        self._show(_HERE)

    def _show(self, kind: bytes) -> None:
        if self.waiting:
            kind = _ASKS  # a topic keeps the last word of each, and the question stands
        core, octets = self._core, self._core.shown()
        self._shown = octets, core.now()
        most = core.settings.limits.network_disclosure
        if len(octets) > most:
            core.note(LimitError("network.limit", f"a broker discloses at most {most} bytes", hint="show less"))
        else:
            self._tell(kind + octets)

    def ask(self) -> None:
        """Ask all others for the policy that they know."""
        self.waiting = set(self._others)
        self.ask_again()

    def ask_again(self) -> None:
        """Ask those who have not answered: their answer may have been lost behind their next word."""
        self._show(_ASKS)

    def answer(self) -> None:
        """Say that all that this broker knows of policy is on the topics."""
        self._show(_ANSWERS)

    def leave(self) -> None:
        """Say that this broker goes, if it has said that it is there."""
        if self._shown is not None:
            self._tell(_GONE)

    def _tell(self, body: bytes) -> None:
        core = self._core
        self._number += 1
        sample = SignedSample(core.principal, self.incarnation, self._number, core.now(), body)
        self._say(self.topic, str(core.principal), sample.sign(self.topic, self._proof).to_bytes())

    # The others.

    def tick(self) -> None:
        """Forget who has gone, and those who may be here no longer."""
        now = self._core.now()
        for broker, last in list(self._others.items()):
            if now - last > self._absence or not self._core.admitted(broker):
                self._forget(broker)

    async def look_for(self, fabric: Fabric, broker: Principal) -> None:
        """Look for what a broker says of itself: what else it says may have been faster. Raises as `hear`."""
        now = asyncio.get_running_loop().time()
        if broker in self._others or now - self._looked.get(broker, -_LOOKING) < _LOOKING:
            return
        if len(self._looked) >= self._core.settings.limits.network_waiting:
            self._looked.clear()
        self._looked[broker] = now
        for sample in await fabric.state(self.topic, str(broker)):
            await self.hear(sample)

    async def hear(self, sample: Sample) -> None:
        """Take what a broker says of itself.

        Raises `MalformedError`, `LimitError`, `RefusedError` (`network.*`, `broker.not-permitted`, `trust.*`).
        """
        core, told = self._core, SignedSample.from_bytes(sample.data)
        if not self._succession.is_new(self.topic, told):
            return
        if told.origin == core.principal:
            self._hear_myself(told)
            return
        now = core.begin()
        if now - told.time > self._absence:
            return
        check_future(core, told, now)
        told.verify(self.topic, self._proof)
        kind = told.body[:1]
        if kind in (_HERE, _ASKS, _ANSWERS):
            await self._admit(told)
            if kind != _HERE:
                self._answered(told.origin)
            if kind == _ASKS:
                self.asked.set()
        elif told.body != _GONE:
            malformed("what a broker says of itself")
        elif told.origin in self._others:
            self._succession.take(self.topic, told)
            self._forget(told.origin)

    def _hear_myself(self, told: SignedSample) -> None:
        """Take a higher incarnation than in a former life: the clock may have gone back, numbers must not."""
        told.verify(self.topic, self._proof)
        if self._shown is None:
            self.incarnation = max(self.incarnation, told.incarnation + 1)

    async def _admit(self, told: SignedSample) -> None:
        core, broker = self._core, told.origin
        most = core.settings.limits.network_brokers
        if broker not in self._others and len(self._others) >= most:
            raise LimitError("network.limit", f"a network has at most {most} brokers")
        bag = await core.read_hello(broker, told.body[1:])
        core.require_broker(broker, bag)
        self._succession.take(self.topic, told)
        self._others[broker] = told.time
        core.disclose(broker, bag)

    def _answered(self, broker: Principal) -> None:
        """Wait for a broker no longer: one that asks has said before what it knows."""
        if broker in self.waiting:
            self.waiting.discard(broker)
            self.heard.set()

    def _forget(self, broker: Principal) -> None:
        del self._others[broker]
        self._answered(broker)
        self._core.disclose(broker, None)
