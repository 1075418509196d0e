"""The DDS side of a fabric over DDS: one participant, its readers and writers, and the bytes that they carry.

A fabric has one participant and one thread. The thread waits for all readers of the participant together, takes what
came in batches, and hands the batches to the event loop. If the loop is behind, the thread waits, and DDS holds the
rest.

Samples are read and written as CDR here, not by the generated types: what a stranger writes is bounded and refused one
by one, and the batch around it is not lost.

    plain     a sequence of bytes
    keyed     a string that DDS takes for the key, and a sequence of bytes

Clients and the keeper send each other messages, which are plain samples: a number, a JSON object, and bytes.
"""

import asyncio
import base64
import json
import re
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import Any, Final

from penstock.errors import FailedError, MalformedError
from penstock.fabric.limits import FABRIC_BYTES, FabricLimits
from penstock.fabric.qos import FOREVER, KEEP_ALL, Ownership, Priority, Qos
from penstock.fabric.tasks import report

try:
    from cyclonedds._clayer import ddspy_take, ddspy_write_ts
    from cyclonedds.core import (
        DDSException,
        GuardCondition,
        InstanceState,
        ReadCondition,
        SampleState,
        ViewState,
        WaitSet,
    )
    from cyclonedds.domain import Domain, DomainParticipant
    from cyclonedds.idl import IdlStruct
    from cyclonedds.idl.annotations import key as key_of
    from cyclonedds.idl.types import sequence, uint8
    from cyclonedds.internal import dds_c_t
    from cyclonedds.pub import DataWriter
    from cyclonedds.pub import Publisher as DdsPublisherEntity
    from cyclonedds.qos import Policy
    from cyclonedds.qos import Qos as DdsPolicies
    from cyclonedds.sub import DataReader, Subscriber
    from cyclonedds.topic import Topic
except ImportError as missing:
    raise FailedError(
        "fabric.not-installed", "the fabric over DDS needs cyclonedds", hint="pip install 'penstock[dds]'"
    ) from missing

# ----------------------------------------------------------------------------------------------------------------------
# Addresses.


_LOOPBACK: Final = ("127.0.0.1", "localhost")
_ADDRESS: Final = re.compile(r"dds://([A-Za-z0-9.,-]+)(?:/([0-9]{1,3}))?(?:\?tag=([A-Za-z0-9_-]{1,64}))?", re.ASCII)
_LAST_DOMAIN: Final = 230
_PROCESSES: Final = 120  # of one domain on one host: each has a port, and the highest must exist


@dataclass(frozen=True, slots=True)
class DdsAddress:
    """The peers of a DDS domain, its number, and its tag: participants with other tags do not see each other."""

    peers: tuple[str, ...]
    domain: int
    tag: str

    @classmethod
    def parse(cls, text: str) -> "DdsAddress":
        """Read `dds://HOST[,HOST…][/DOMAIN][?tag=TAG]`. Raises `MalformedError` (`fabric.bad-address`).

        >>> DdsAddress.parse("dds://127.0.0.1/7?tag=test")
        DdsAddress(peers=('127.0.0.1',), domain=7, tag='test')
        """
        found = _ADDRESS.fullmatch(text)
        peers = found[1].split(",") if found else []
        if found is None or not all(peers) or int(found[2] or 0) > _LAST_DOMAIN:
            raise MalformedError(
                "fabric.bad-address",
                "not an address of a DDS domain",
                hint="write `dds://host,host/domain?tag=name`, such as `dds://127.0.0.1/7`; domains are 0 to 230",
            )
        return cls(tuple(peers), int(found[2] or 0), found[3] or "penstock")

    def config(self) -> str:
        """Return the configuration of Cyclone DDS: unicast to the peers only, on loopback if they are all there."""
        local = all(peer in _LOOPBACK for peer in self.peers)
        interface = 'address="127.0.0.1"' if local else 'autodetermine="true"'
        peers = "".join(f'<Peer Address="{peer}"/>' for peer in self.peers)
        return (
            f'<CycloneDDS><Domain Id="any"><General><Interfaces><NetworkInterface {interface}/></Interfaces>'
            f"<AllowMulticast>false</AllowMulticast></General><Discovery><Tag>{self.tag}</Tag>"
            f"<ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>{_PROCESSES - 1}"
            # Processes find each other by single packets: when one is lost, the next one follows soon.
            f"</MaxAutoParticipantIndex><Peers>{peers}</Peers><SPDPInterval>2s</SPDPInterval></Discovery>"
            # A process that hangs is dropped after its lease (10 s); until then the others write on.
            "<Internal><Watermarks><WhcHigh>64MB</WhcHigh></Watermarks></Internal></Domain></CycloneDDS>"
        )


# ----------------------------------------------------------------------------------------------------------------------
# The bytes of samples and messages.


@dataclass
class PlainOctets(IdlStruct, typename="penstock.PlainOctets"):  # type: ignore[call-arg,misc]  # mypy skips cyclonedds
    """A plain sample."""

    data: sequence[uint8]


@dataclass
class KeyedOctets(IdlStruct, typename="penstock.KeyedOctets"):  # type: ignore[call-arg,misc]  # as above
    """A keyed sample."""

    slot: str
    key_of("slot")
    data: sequence[uint8]


_CDR: Final = b"\0\1\0\0"  # little-endian
_LENGTH: Final = struct.Struct("<I")
_MESSAGE: Final = struct.Struct(">II")
#: bytes of a sample or message with everything around its data
_LARGEST: Final = FABRIC_BYTES + (64 << 10)


def pack(data: bytes, key: str | None = None) -> bytes:
    """Return the CDR of a plain sample, or of a keyed one."""
    parts = [_CDR]
    if key is not None:
        text = base64.urlsafe_b64encode(key.encode()) + b"\0"  # a string in CDR has no zero inside
        parts += (_LENGTH.pack(len(text)), text, b"\0" * (-len(text) % 4))
    parts += (_LENGTH.pack(len(data)), data, b"\0" * (-len(data) % 4))
    return b"".join(parts)


def unpack(raw: bytes, *, keyed: bool = False) -> bytes:
    """Return the data of a plain or keyed sample. Raises `MalformedError` (`fabric.envelope`)."""
    at = len(_CDR)
    try:
        if raw[:at] != _CDR or len(raw) > _LARGEST:
            raise _unreadable()
        if keyed:
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size + length + -length % 4
        (length,) = _LENGTH.unpack_from(raw, at)
    except struct.error as error:
        raise _unreadable() from error
    at += _LENGTH.size
    if at + length > len(raw) or len(raw) - at - length > 3:
        raise _unreadable()
    return bytes(raw[at : at + length])


def unpack_key(raw: bytes) -> str:
    """Return the key of a keyed sample. Raises `MalformedError` (`fabric.envelope`)."""
    try:
        (length,) = _LENGTH.unpack_from(raw, len(_CDR))
        text = raw[len(_CDR) + _LENGTH.size :][:length]
        return base64.urlsafe_b64decode(bytes(text).rstrip(b"\0")).decode()
    except (struct.error, ValueError) as error:
        raise _unreadable() from error


def pack_message(number: int, fields: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of a message."""
    head = json.dumps(fields).encode()
    return _MESSAGE.pack(number, len(head)) + head + body


def unpack_message(raw: bytes) -> tuple[int, dict[str, Any], bytes]:
    """Return the number, fields and body of a message. Raises `MalformedError` (`fabric.envelope`)."""
    try:
        number, length = _MESSAGE.unpack_from(raw)
        end = _MESSAGE.size + length
        fields = json.loads(raw[_MESSAGE.size : end])
    except (struct.error, ValueError, RecursionError) as error:
        raise _unreadable() from error
    if end > len(raw) or not isinstance(fields, dict):
        raise _unreadable()
    return number, fields, raw[end:]


def _unreadable() -> MalformedError:
    return MalformedError("fabric.envelope", "the bytes are not a sample")


# ----------------------------------------------------------------------------------------------------------------------
# Policies of DDS.


_PRIORITIES: Final = {Priority.LOW: 0, Priority.NORMAL: 1, Priority.HIGH: 2}
_SECOND: Final = 1_000_000_000
_INFINITE: Final = 0x7FFFFFFFFFFFFFFF


def policies(qos: Qos, limits: FabricLimits, *, real_time: bool = False, epoch: int = 0, kept: bool = False) -> Any:
    """Return the DDS policies of a writer or reader of a topic.

    History, source order, deadline and time-based filter are not among them: DDS drops without a word, and the port
    counts what it drops. The strength of an owner is its epoch, so that DDS and the claim name the same owner. `kept`
    topics are written by the keeper, which keeps them for late readers. If the clock is not that of the machine, a
    lifespan is not for DDS to measure.
    """
    reliable = qos.reliable or kept
    chosen = [
        Policy.Reliability.Reliable(0) if reliable else Policy.Reliability.BestEffort,
        Policy.History.KeepAll if reliable else Policy.History.KeepLast(limits.fabric_pending),
        # A writer with an infinite budget may wait for the next sample before it sends one.
        Policy.LatencyBudget(0 if qos.latency_budget == FOREVER else _duration(qos.latency_budget)),
        Policy.TransportPriority(_PRIORITIES[qos.priority]),
    ]
    if real_time and qos.lifespan != FOREVER:
        chosen.append(Policy.Lifespan(_duration(qos.lifespan)))
    if kept:
        depth = Policy.History.KeepAll if qos.history == KEEP_ALL else Policy.History.KeepLast(qos.history)
        chosen[1] = depth
        chosen += (Policy.Durability.TransientLocal, Policy.DurabilityService(0, depth, -1, -1, -1))
    elif qos.ownership is Ownership.EXCLUSIVE:
        chosen.append(Policy.Ownership.Exclusive)
        if epoch:
            chosen.append(Policy.OwnershipStrength(epoch))
    return DdsPolicies(*chosen)


def reader_policies(qos: Qos, limits: FabricLimits, *, kept: bool) -> Any:
    """Return the DDS policies of a reader: what it gets is bounded by `SampleReader`, not by DDS."""
    replaced = {"DurabilityService", "LatencyBudget"} | ({"History"} if kept else set())
    chosen = [policy for policy in policies(qos, limits, kept=kept) if policy.__scope__ not in replaced]
    return DdsPolicies(
        *chosen, Policy.LatencyBudget(_duration(qos.latency_budget)), *([Policy.History.KeepAll] if kept else [])
    )


def _duration(seconds: float) -> int:
    return _INFINITE if seconds == FOREVER else round(seconds * _SECOND)


# ----------------------------------------------------------------------------------------------------------------------
# The participant.


_ANY: Final = SampleState.Any | ViewState.Any | InstanceState.Any
#: which samples are taken: since 11 the library wants to know
_HOW: Final = () if version("cyclonedds").startswith("0.") else (_ANY,)
_BATCH: Final = 512
_READY: Final = 64  # readers that are looked at after one wait
_BEHIND: Final = 64  # batches that may wait for the event loop
_TIMEOUT: Final = -10  # of DDS: a writer's history is full
_GUARD: Final = 1  # what the wait set says for the guard condition; readers have higher numbers

_DOMAINS: dict[int, "_SharedDomain"] = {}
_DOMAINS_LOCK: Final = threading.Lock()


@dataclass
class _SharedDomain:
    """A DDS domain, which one process can open once."""

    address: DdsAddress
    entity: Any
    users: int = 0


def _enter(address: DdsAddress) -> None:
    with _DOMAINS_LOCK:
        shared = _DOMAINS.get(address.domain)
        if shared is None:
            with _refusing(f"domain {address.domain}"):
                shared = _DOMAINS[address.domain] = _SharedDomain(address, Domain(address.domain, address.config()))
        elif shared.address != address:
            raise MalformedError(
                "fabric.bad-address",
                f"this process uses DDS domain {address.domain} with other peers or another tag",
                hint="use the same address for all fabrics of a process, or another domain",
            )
        shared.users += 1


def _leave(address: DdsAddress) -> None:
    with _DOMAINS_LOCK:
        shared = _DOMAINS[address.domain]
        shared.users -= 1
        if not shared.users:
            del _DOMAINS[address.domain]
            _delete(shared.entity)


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn errors of DDS into those of the port."""
    try:
        yield
    except DDSException as error:
        raise FailedError("fabric.refused", f"DDS cannot open {what}: {error}") from error


def _delete(entity: Any) -> None:
    """Delete an entity and all that belongs to it; the library has no other call for it."""
    entity.__del__()


@dataclass(eq=False)
class DdsWriter:
    """A DDS writer in one partition."""

    entity: Any
    publisher: Any
    topic: Any

    def write(self, raw: bytes, microseconds: int) -> bool:
        """Write the CDR of a sample; return False if DDS holds as much as it may. Raises `FailedError`."""
        code = ddspy_write_ts(self.entity._ref, raw, microseconds * 1000)  # noqa: SLF001  # no other way to the bytes
        if code == _TIMEOUT:
            return False
        if code < 0:
            raise FailedError("fabric.refused", f"DDS did not take a sample: code {code}")
        return True

    async def wait_for_acks(self, seconds: float) -> None:
        """Wait until all readers have acknowledged all samples, but not longer."""
        # The library's own `wait_for_acks` of a writer raises at the end of the time.
        wait, reference = self.entity._wait_for_acks, self.entity._ref  # noqa: SLF001  # as said
        if wait(reference, 0) == _TIMEOUT:
            await asyncio.to_thread(wait, reference, _duration(seconds))

    def close(self) -> None:
        """Delete the writer."""
        _delete(self.entity)
        _delete(self.publisher)


@dataclass(eq=False)
class DdsReader:
    """A DDS reader of some partitions."""

    link: "DdsLink"
    entity: Any
    subscriber: Any
    topic: Any
    token: int
    condition: Any

    def close(self) -> None:
        """Delete the reader."""
        self.link.forget(self)
        _delete(self.entity)
        _delete(self.subscriber)


class DdsLink:
    """A participant of a DDS domain, for one event loop. Raises `FailedError` (`fabric.refused`)."""

    def __init__(self, address: DdsAddress) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._tokens = count(_GUARD + 1)
        self._sources: dict[int, Callable[[], Callable[[], None] | None]] = {}
        self._room = threading.BoundedSemaphore(_BEHIND)
        self._ended = threading.Event()
        _enter(address)
        try:
            with _refusing(f"domain {address.domain}"):
                self._participant = DomainParticipant(address.domain)
                self._waitset = WaitSet(self._participant)
                self._guard = GuardCondition(self._participant)
                self._attach(self._guard, _GUARD)
        except FailedError:
            _leave(address)
            raise
        self._thread = threading.Thread(target=self._run, name="penstock-dds", daemon=True)
        self._thread.start()

    def writer(self, name: str, qos: Any, *, keyed: bool = False, partition: str = "") -> DdsWriter:
        """Open a writer of a DDS topic. Raises `FailedError` (`fabric.refused`)."""
        with _refusing(name):
            topic = Topic(self._participant, name, KeyedOctets if keyed else PlainOctets)
            publisher = DdsPublisherEntity(self._participant, DdsPolicies(Policy.Partition([partition])))
            return DdsWriter(DataWriter(publisher, topic, qos), publisher, topic)

    def reader(  # noqa: PLR0913  # named settings, each with a default
        self,
        name: str,
        qos: Any,
        sink: Callable[[list[bytes]], None],
        *,
        keyed: bool = False,
        partitions: Collection[str] = ("",),
        on_gone: Callable[[str], None] | None = None,
    ) -> DdsReader:
        """Open a reader of a DDS topic. `sink` gets the CDR of what came, `on_gone` each key that lost its writer.

        Raises `FailedError` (`fabric.refused`).
        """
        with _refusing(name):
            topic = Topic(self._participant, name, KeyedOctets if keyed else PlainOctets)
            subscriber = Subscriber(self._participant, DdsPolicies(Policy.Partition(list(partitions))))
            entity = DataReader(subscriber, topic, qos)
        reference = entity._ref  # noqa: SLF001  # no other way to the bytes

        def take() -> Callable[[], None] | None:
            took = ddspy_take(reference, *_HOW, _BATCH)
            # A negative number: the reader was closed.
            return partial(_hand_on, took, sink, on_gone) if isinstance(took, list) else None

        made = DdsReader(self, entity, subscriber, topic, next(self._tokens), ReadCondition(entity, _ANY))
        self._sources[made.token] = take
        self._attach(made.condition, made.token)
        return made

    def _attach(self, condition: Any, token: int) -> None:
        # The wait set's own `attach` gives no way to tell which condition was met.
        self._waitset._waitset_attach(self._waitset._ref, condition._ref, token)  # noqa: SLF001  # as said

    def forget(self, reader: DdsReader) -> None:
        """Stop waiting for a reader (called by it)."""
        self._waitset._waitset_detach(self._waitset._ref, reader.condition._ref)  # noqa: SLF001  # as above
        self._sources.pop(reader.token, None)
        _delete(reader.condition)

    async def close(self) -> None:
        """End the thread, and leave the domain with all readers and writers."""
        if not self.closed:
            self._ended.set()
            self._guard.set(True)
            await asyncio.to_thread(self._end)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._ended.is_set()

    def _end(self) -> None:
        self._thread.join()
        _delete(self._waitset)
        _delete(self._participant)
        _leave(self._address)

    def _run(self) -> None:
        """Wait for readers, take what came, and hand it to the event loop (in the thread)."""
        ready = (dds_c_t.attach * _READY)()
        while not self._ended.is_set():
            found = self._waitset._waitset_wait(self._waitset._ref, ready, _READY, _INFINITE)  # noqa: SLF001  # as above
            if found < 0:
                return
            done = []
            for token in ready[: min(found, _READY)]:
                source = self._sources.get(token)
                work = source() if source is not None else None
                if work is not None:
                    done.append(work)
            if not done:
                continue
            while not self._room.acquire(timeout=0.1):
                if self._ended.is_set():
                    return
            try:
                self._loop.call_soon_threadsafe(self._hand_over, done)
            except RuntimeError:
                return  # the event loop is closed

    def _hand_over(self, done: list[Callable[[], None]]) -> None:
        self._room.release()
        if self.closed:
            return
        for work in done:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # one reader's fault must not keep the others waiting
                report("reading from DDS", error)


def _hand_on(
    took: list[tuple[bytes, Any]], sink: Callable[[list[bytes]], None], on_gone: Callable[[str], None] | None
) -> None:
    sink([raw for raw, info in took if info.valid_data])
    if on_gone is not None:
        for raw, info in took:
            if info.instance_state != InstanceState.Alive:
                with suppress(MalformedError):
                    on_gone(unpack_key(raw))
