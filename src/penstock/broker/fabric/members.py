"""The members of a network on a fabric: each broker announces itself on a topic of the network, under its principal.

An announcement is signed, numbered and timed, and contains the credentials that the broker shows. Brokers renew it. A
broker that does not renew it is forgotten, and so is one that says goodbye or loses its rights.

A broker that starts, or has missed something, asks the others for the policy that they know. `waiting` has those that
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
# Samples: messages of one broker to all others, across a fabric that nobody has to trust.
#
# Layout: a list of origin, incarnation, number, time, body and proof.
#
# The proof is the origin's public key and its signature over a label, the network, the topic, and everything else. One
# signature covers all events in the body. Numbers of an origin rise on each topic. So samples that arrive twice or out
# of order are refused (`Succession`), and missing ones are counted.


LABEL: Final = b"penstock-sample-1"


@dataclass(frozen=True, slots=True)
class SignedSample:
    """See above. Do not trust what was read before `verify`."""

    origin: Principal
    incarnation: int
    number: int
    time: datetime
    body: bytes = field(repr=False)
    proof: bytes = field(default=b"", repr=False)

    def sign(self, topic: str, proof: AnnouncementProof) -> "SignedSample":
        """Return the sample with this broker's proof for one topic."""
        return replace(self, proof=proof.sign(self._words(topic)))

    def verify(self, topic: str, proof: AnnouncementProof) -> None:
        """Check that the origin signed this sample for this topic. Raises `RefusedError` (`network.proof`)."""
        proof.verify(self.origin, self._words(topic), self.proof)

    def _words(self, topic: str) -> bytes:
        order = (str(self.incarnation).encode(), str(self.number).encode(), self.time.isoformat().encode())
        return digest((LABEL, topic.encode(), self.origin.digest, *order, sha256(self.body).digest()))

    def to_bytes(self) -> bytes:
        """Return the bytes that cross the fabric."""
        origin = principal_tree(self.origin)
        return encode([origin, self.incarnation, self.number, self.time, self.body, self.proof])

    @classmethod
    def from_bytes(cls, raw: bytes) -> "SignedSample":
        """Read bytes. Raises `MalformedError` and `LimitError`."""
        tree = decode(raw)
        if type(tree) is not list or tuple(map(type, tree)) != cls._FORM:
            malformed("a sample")
        origin, incarnation, number, time, body, proof = tree
        if not (0 <= incarnation <= INTEGER_MAX and 0 <= number <= INTEGER_MAX):  # type: ignore[operator]  # of the form
            malformed("the counts of a sample")
        return cls(read_principal(origin), incarnation, number, time, body, proof)  # type: ignore[arg-type]  # so too

    #: the types of the elements of a tree
    _FORM: ClassVar = (bytes, int, int, datetime, bytes, bytes)


class Succession:
    """The last number of each origin on each topic. The memory is bounded; the least recent is forgotten first."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._most = limits.route_streams
        self._last: OrderedDict[tuple[str, Principal], tuple[int, int]] = OrderedDict()

    def is_new(self, topic: str, sample: SignedSample) -> bool:
        """Say whether a sample has a higher number than all before; the sample need not be verified."""
        last = self._last.get((topic, sample.origin))
        return last is None or (sample.incarnation, sample.number) > last

    def take(self, topic: str, sample: SignedSample) -> int:
        """Record a verified sample; return how many are missing before it.

        Raises `RefusedError` (`network.replay`) if this or a later one has arrived before.
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
        # Samples from before this broker read the topic are not missing.
        return order[1] - last[1] - 1 if last is not None and last[0] == order[0] else 0


# ----------------------------------------------------------------------------------------------------------------------
# Members.


#: the first byte of an announcement: the broker is here; it is here and asks the others for the policy that they know;
#: it is here and has written the policy that it knows; it leaves
_HERE, _ASKS, _ANSWERS, _GONE = b"+", b"?", b"!", b"-"
#: seconds until a broker that was not found is looked for again
_LOOKING: Final = 1.0

Say: TypeAlias = Callable[[str, str, bytes], None]
"""Writes to a topic that keeps it, under a key."""


def network_topic(network: NetworkName) -> str:
    """Return the topic on which the brokers of a network announce themselves."""
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
    """See the module. Seconds: `renewal` between announcements, `absence` until a silent broker is forgotten."""

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
        #: when each of the others has last announced itself
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
        """Announce this broker, if it has not been announced for `renewal` or shows other credentials now."""
        core, now = self._core, self._core.now()
        shown = core.shown()
        if self._shown is not None and self._shown[0] == shown and abs(now - self._shown[1]) < self._renewal:
            return
        self._show(_HERE)

    def _show(self, kind: bytes) -> None:
        if self.waiting:
            kind = _ASKS  # a topic keeps the last announcement of each broker, and the question is still open
        core, shown = self._core, self._core.shown()
        self._shown = shown, core.now()
        most = core.settings.limits.network_disclosure
        if len(shown) > most:
            core.note(LimitError("network.limit", f"a broker discloses at most {most} bytes", hint="show less"))
        else:
            self._tell(kind + shown)

    def ask(self) -> None:
        """Ask all others for the policy that they know."""
        self.waiting = set(self._others)
        self.ask_again()

    def ask_again(self) -> None:
        """Ask again: the topic keeps one announcement of each broker, so that an answer may be overwritten."""
        self._show(_ASKS)

    def answer(self) -> None:
        """Announce that all policy that this broker knows is on the topics."""
        self._show(_ANSWERS)

    def leave(self) -> None:
        """Announce that this broker leaves, if it was announced."""
        if self._shown is not None:
            self._tell(_GONE)

    def _tell(self, body: bytes) -> None:
        core = self._core
        self._number += 1
        sample = SignedSample(core.principal, self.incarnation, self._number, core.now(), body)
        self._say(self.topic, str(core.principal), sample.sign(self.topic, self._proof).to_bytes())

    # The others.

    def tick(self) -> None:
        """Forget brokers that are silent for too long, or have lost their rights."""
        now = self._core.now()
        for broker, last in list(self._others.items()):
            if now - last > self._absence or not self._core.admitted(broker):
                self._forget(broker)

    async def look_for(self, fabric: Fabric, broker: Principal) -> None:
        """Read a broker's announcement if it is not known yet: other samples may arrive first. Raises as `hear`."""
        now = asyncio.get_running_loop().time()
        if broker in self._others or now - self._looked.get(broker, -_LOOKING) < _LOOKING:
            return
        if len(self._looked) >= self._core.settings.limits.network_waiting:
            self._looked.clear()
        self._looked[broker] = now
        for sample in await fabric.state(self.topic, str(broker)):
            await self.hear(sample)

    async def hear(self, sample: Sample) -> None:
        """Take in a broker's announcement.

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
            malformed("the announcement of a broker")
        elif told.origin in self._others:
            self._succession.take(self.topic, told)
            self._forget(told.origin)

    def _hear_myself(self, told: SignedSample) -> None:
        """Use a higher incarnation than before the last start: the clock may have gone back, numbers must not."""
        told.verify(self.topic, self._proof)
        if self._shown is None:
            self.incarnation = max(self.incarnation, told.incarnation + 1)
        elif told.incarnation > self.incarnation:
            raise RefusedError(
                "network.twin",
                "another process announces itself as this broker: others do not accept what comes from here any more",
                hint="let one process alone have the key, and start it again",
            )

    async def _admit(self, told: SignedSample) -> None:
        core, broker = self._core, told.origin
        most = core.settings.limits.network_brokers
        if broker not in self._others and len(self._others) >= most:
            raise LimitError("network.limit", f"a network has at most {most} brokers")
        bag = await core.read_hello(broker, told.body[1:])
        if core.disclosed.get(broker) != bag or not core.admitted(broker):
            # A broker that renews its announcement was admitted by the same credentials, which still permit it.
            core.require_broker(broker, bag)
        self._succession.take(self.topic, told)
        self._others[broker] = told.time
        core.disclose(broker, bag)

    def _answered(self, broker: Principal) -> None:
        """Stop waiting for a broker. One that asks has answered too: it writes what it knows before it asks."""
        if broker in self.waiting:
            self.waiting.discard(broker)
            self.heard.set()

    def _forget(self, broker: Principal) -> None:
        del self._others[broker]
        self._answered(broker)
        self._core.disclose(broker, None)
