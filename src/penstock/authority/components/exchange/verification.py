"""Verification of the samples that a component reads. It is pure: `now` is an argument.

For each sample, in the order of their cost:

(1) It is well-formed. (2) It is for this topic of this domain, under its own key. (3) It is not too old, and not from
the future. (4) It is not a copy, and its writer has not written too much. (5) Where it came from, not too much failed
before. (6) The certificate is that of the writer, its role has not ended, and its topics-list has the topic. (7) The
signature is the writer's.

Only what passed all of this is remembered for (4), so nobody can use up what another writer may write. What fails at
(6) or (7) costs a verification. For a source that has written valid samples before, failures are counted for it alone,
and for all others together.

Bytes that no writer can make valid at any time, such as those with a wrong signature, are remembered by their digest,
and refused before all of this when they come again. The digest is of all bytes, so it refuses nothing else: whoever
uses another writer's name does not stop what that writer signs.

What honest components cause too is a `RoutineRefusedError`, which is counted and not reported: a sample on two
instances of a topic, one that a slow machine delays, and one from before its writer's role ended.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from penstock.authority.components.exchange.certificates import (
    ComponentCertificate,
    ComponentCertificates,
    record_number,
)
from penstock.authority.components.exchange.samples import (
    ComponentSample,
    Configuration,
    JoinRequest,
    SampleContent,
    UnverifiedSample,
    read_sample,
    sample_key,
)
from penstock.authority.components.exchange.topics import LEASED, REPLIES, REQUESTS, TopicInstance
from penstock.authority.limits import POINT_SKEW
from penstock.crypto import PublicKey
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric import FOREVER
from penstock.model.principals import Principal

#: requests or replies of one writer that are valid at a time
WRITER_SAMPLES: Final = 50_000
#: failed verifications a second, and in a burst, of one source; sources that are remembered
FAILURES: Final = 500.0
SOURCES: Final = 10_000
#: refused samples that are remembered
REMEMBERED: Final = 1_000
#: codes of refusals that the bytes alone decide, as all `MalformedError`s
_FINAL: Final = frozenset({"key.bad-signature", "component.outside-list"})
#: ends of roles in one sample
ENDED_TOGETHER: Final = 1_000
_SHORT_LIVED: Final = REQUESTS | REPLIES


class RoutineRefusedError(RefusedError):
    """A refusal that honest components cause too: it is counted, and not reported."""


@dataclass(frozen=True, slots=True)
class VerifiedSample:
    """A sample that passed all checks. `configuration` is the one to answer a request under: maybe an old one."""

    instance: TopicInstance
    record: SampleContent
    writer: ComponentCertificate
    number: int
    time: float
    #: the configuration number under which it was written
    written_under: int
    configuration: Configuration | None = None


@dataclass(slots=True)
class _Failures:
    """A bucket of failed verifications that a source has left."""

    left: float = FAILURES
    then: float = 0.0

    def spent(self, now: float) -> bool:
        self.left = min(FAILURES, self.left + max(0.0, now - self.then) * FAILURES)
        self.then = now
        return self.left < 1


@dataclass(slots=True)
class _Writer:
    """What one component has written: valid requests and replies by number, and the last number of others by topic."""

    #: the time of each, and the instance of its topic that it was first read from
    recent: OrderedDict[int, tuple[float, TopicInstance]] = field(default_factory=OrderedDict)
    last: dict[TopicInstance, int] = field(default_factory=dict)


class SampleVerifier:
    """Verifies the samples of one domain. `lifespan` is LS."""

    def __init__(self, domain: str, administrators: frozenset[Principal], lifespan: float) -> None:
        self.domain = domain
        self.lifespan = lifespan
        #: seconds for which QPEP and QPDP are valid
        self.lease = FOREVER
        self.certificates = ComponentCertificates(domain, administrators)
        #: by component: the configuration number before which certificates have ended
        self._replaced: dict[str, int] = {}
        #: by component: the record of its last role that has ended, and when. Its earlier ones ended before
        self._ended: dict[str, tuple[str, float]] = {}
        #: by component and record: numbers may begin again with each role, and with each run of a PAP
        self._writers: dict[tuple[str, str], _Writer] = {}
        self._sources: OrderedDict[bytes, _Failures] = OrderedDict()
        self._others = _Failures()
        #: by topic, key and digest, the oldest first: why samples were refused, and always will be
        self._refused: OrderedDict[tuple[TopicInstance, str, bytes], PenstockError] = OrderedDict()

    def verify(  # noqa: PLR0913  # a sample, where it came from, and how to look at it
        self,
        data: bytes,
        instance: TopicInstance,
        key: str,
        source: bytes,
        now: float,
        *,
        again: bool = False,
        ahead: bool = False,
    ) -> VerifiedSample:
        """Return the sample in these bytes, which came from a source under a key. See the module.

        With `again`, it may be one that was read before, or that will be read again. With `ahead`, it may be from the
        future, if it will be valid when its time comes.

        Raises `MalformedError` as `read_sample`, and `RefusedError`: `component.misdirected`, `component.late`,
        `component.copy`, `component.flood`, `component.certificate`, `component.outside-list`, `component.withdrawn`,
        `key.bad-signature`.
        """
        if self._refused and (before := self._refused.get((instance, key, sha256(data).digest()))) is not None:
            raise before.with_traceback(None)
        try:
            return self._verify(data, instance, key, source, now, again=again, ahead=ahead)
        except PenstockError as error:
            if isinstance(error, MalformedError) or error.code in _FINAL:
                self._refused[instance, key, sha256(data).digest()] = error.with_traceback(None)
                if len(self._refused) > REMEMBERED:
                    self._refused.popitem(last=False)
            raise

    def _verify(  # noqa: PLR0913  # as above
        self, data: bytes, instance: TopicInstance, key: str, source: bytes, now: float, *, again: bool, ahead: bool
    ) -> VerifiedSample:
        found = self._read(data, instance, key, now, ahead=ahead)  # (1) to (3)
        sample = found.sample
        known = self.certificates.known(found.certificate)
        if known is not None and not again:
            self._check_new(sample, instance, known, now)  # (4)
        failures = self._sources.get(source, self._others)
        if failures.spent(now):  # (5)
            raise _refused("component.flood", sample, "too many samples from its source are forged")
        try:
            writer = self._writer_of(found, instance, max(now, sample.time) if ahead else now)  # (6)
            if known is None and not again:
                self._check_new(sample, instance, writer, now)
            found.verify(writer.public)  # (7)
        except PenstockError as error:
            failures.left -= 1
            error.fields.setdefault("component", sample.id)
            error.fields.setdefault("topic", str(instance))
            raise
        if not again:
            self._remember(sample, instance, writer, source)
        return VerifiedSample(instance, sample.content, writer, sample.number, sample.time, sample.configuration)

    def verify_join(self, data: bytes, instance: TopicInstance, key: str, now: float) -> ComponentSample:
        """Return a request to join: signed by the key in it. Raises as `verify`."""
        found = self._read(data, instance, key, now)
        content = found.sample.content
        if not isinstance(content, JoinRequest):
            raise _refused("component.misdirected", found.sample, "it is not a request to join")
        found.verify(PublicKey(content.key))
        return found.sample

    def check(self, sample: VerifiedSample) -> None:
        """Check again that the writer's role has not ended. Raises `RefusedError` (`component.withdrawn`)."""
        writer, replaced = sample.writer, self._replaced.get(sample.writer.id, 0)
        last, at = self._ended.get(writer.id, ("", 0.0))
        ended = at if writer.record == last or 0 <= record_number(writer.record) <= record_number(last) else None
        if ended is not None or (
            writer.since < replaced and (sample.written_under >= replaced or sample.instance.kind not in _SHORT_LIVED)
        ):
            # Topics keep what was written before.
            before = sample.time < ended if ended is not None else sample.written_under < replaced
            raise (RoutineRefusedError if before else RefusedError)(
                "component.withdrawn",
                f"the role of component `{writer.id}` has ended, or its certificate was replaced",
                hint="the component must join again",
                component=writer.id,
                topic=str(sample.instance),
            )

    def replace(self, component: str, number: int) -> None:
        """End the certificates of a component from before a configuration number.

        Requests and replies that were written under an earlier number stay valid: the old configuration serves them.
        """
        self._replaced[component] = max(number, self._replaced.get(component, 0))

    def end(self, component: str, record: str, time: float) -> None:
        """End a role of a component, and all that it had before.

        Until a time it may honestly write, because it does not know it yet.
        """
        if component not in self._ended or record_number(record) > record_number(self._ended[component][0]):
            self._ended[component] = record, time
        self._writers.pop((component, record), None)

    def begin_again(self) -> None:
        """Expect what topics keep once more: they are read from the start."""
        for writer in self._writers.values():
            writer.last.clear()

    def _read(
        self, data: bytes, instance: TopicInstance, key: str, now: float, *, ahead: bool = False
    ) -> UnverifiedSample:
        found = read_sample(data)  # (1)
        sample = found.sample
        if sample.domain != self.domain or sample.topic != str(instance) or sample_key(sample) != key:  # (2)
            raise _refused(
                "component.misdirected", sample, f"it was written to {instance} of `{self.domain}` under `{key}`"
            )
        short = instance.kind in _SHORT_LIVED
        longest = self.lifespan + POINT_SKEW
        if instance.kind in LEASED and sample.time < now - self.lease - POINT_SKEW:
            # Its writer would have written it again. Anybody can write a genuine one again where a newcomer reads.
            raise _refused("component.late", sample, "its writer has not written it again", routine=True)
        if (sample.time > now + POINT_SKEW and not ahead) or (short and sample.time < now - longest):  # (3)
            # What is asked for a request has the request's time: each of both can be under way for so long.
            slow = now - 2 * longest <= sample.time <= now
            raise _refused("component.late", sample, "its time is over, or has not come", routine=slow)
        return found

    def _check_new(
        self, sample: ComponentSample, instance: TopicInstance, certificate: ComponentCertificate, now: float
    ) -> None:
        short, longest = instance.kind in _SHORT_LIVED, self.lifespan + POINT_SKEW
        writer = self._writers.get((certificate.id, certificate.record))
        if writer is not None:
            known = writer.recent.get(sample.number) if short else None
            if known is not None or (not short and sample.number <= writer.last.get(instance, -1)):
                # A request is written to all instances of its topic that its writer has.
                twice = known is not None and known[1] != instance
                message = "it is a copy, or older than what its writer wrote before"
                raise _refused("component.copy", sample, message, routine=twice)
            while writer.recent and next(iter(writer.recent.values()))[0] < now - longest:
                writer.recent.popitem(last=False)
            if len(writer.recent) >= WRITER_SAMPLES:
                raise _refused("component.flood", sample, "its writer writes too much")

    def _writer_of(self, found: UnverifiedSample, instance: TopicInstance, now: float) -> ComponentCertificate:
        sample = found.sample
        writer = self.certificates.verify(found.certificate, datetime.fromtimestamp(now, UTC))
        if writer.id != sample.id or writer.since > sample.configuration:
            raise _refused(
                "component.certificate", sample, f"its certificate is that of `{writer.id}` from {writer.since} on"
            )
        if not writer.may_write(instance):
            raise _refused("component.outside-list", sample, f"role {writer.role_name} cannot write {instance}")
        self.check(VerifiedSample(instance, sample.content, writer, sample.number, sample.time, sample.configuration))
        return writer

    def _remember(
        self, sample: ComponentSample, instance: TopicInstance, certificate: ComponentCertificate, source: bytes
    ) -> None:
        writer = self._writers.setdefault((certificate.id, certificate.record), _Writer())
        if instance.kind in _SHORT_LIVED:
            writer.recent[sample.number] = sample.time, instance
        else:
            writer.last[instance] = max(sample.number, writer.last.get(instance, 0))
        if source not in self._sources:
            self._sources[source] = _Failures()
            if len(self._sources) > SOURCES:
                self._sources.popitem(last=False)


def _refused(code: str, sample: ComponentSample, why: str, *, routine: bool = False) -> RefusedError:
    return (RoutineRefusedError if routine else RefusedError)(
        code,
        f"a sample of component `{sample.id}` for {sample.topic} is refused: {why}",
        component=sample.id,
        topic=sample.topic,
        number=sample.number,
    )
