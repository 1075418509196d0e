"""What components write to each other: signed samples.

On the fabric a sample is

    <length of the certificate: 2 bytes> <certificate> <body> <signature: 64 bytes>

The body is a `ComponentSample`: which topic it is for, who wrote it, and one of the contents below. It is MessagePack
with one written form: a body that would be written differently than it was read is refused, and so is an unknown field.
The signature is the writer's, over a prefix and the body. The certificate says who the writer is, and readers verify it
once. A JOIN has no certificate but the writer's public key in its content.

| topics | content | fields of the paper |
|---|---|---|
| JOIN | `JoinRequest` | CE `certificates`, RR `requested_role`, AR `active_roles`; DN and ID are the sample's |
| CONF | `Configuration` | DN, ID: whose; RC `certificate` with TL, CA `combining`, PR `priorities`, PO `policies` |
| CONF | `ReconfigurationPlan` | ours: what the owner of CONF is about to do, for the other PAPs |
| R* | `Reconfiguration` | RE: `roles`, `certificates`, `withdrawn`, `private`; ET `expected` |
| R*, CONF | `BaseTime` | ours: the base time of an earlier reconfiguration |
| R*, CONF | `Withdrawal` | ours: components whose roles have ended |
| CONF | `DomainCheckpoint` | ours: the state of the PAPs, so that earlier samples can be discarded |
| A* | `AppliedTime` | AT `time`; DN and ID are the sample's |
| A*, SPOL | `Departure` | ours: the writer leaves |
| QPEP, QPDP | `RequiredNames` | RA `names` |
| DREQ | `DecisionRequest` | RQ `question` |
| DREP | `DecisionReply` | DN, ID: whose request; RP: the decision |
| IREQ | `InformationRequest` | RQ `queries` |
| IREP | `InformationReply` | DN, ID: whose request; RP `fields` |
| SPOL | `SpecifiedPolicy` | the policy as its author wrote it |
| APOL | `PolicyApplied` | DN, ID: whose policy; AT `time` |
| APOL | `NewTopicKeys` | ours: topic keys of a PSP |

Times are seconds since 1970.
"""

import math
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec

from penstock.authority.components.exchange.topics import (
    ComponentKind,
    TopicInstance,
    TopicKind,
    TopicLevels,
    check_component_name,
    component_key,
    reply_sample_key,
    request_sample_key,
)
from penstock.authority.components.exchange.topics_lists import TopicsList
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion
from penstock.crypto import PublicKey, Signer
from penstock.errors import LimitError, MalformedError
from penstock.fabric.limits import FABRIC_BYTES

#: keys on CONF that no component has: of the plans of PAPs, and of withdrawals, which PAPs of other domains read
PLANS_KEY: Final = "plans"
WITHDRAWALS_KEY: Final = "withdrawals"
#: samples over which a reconfiguration for one R* topic, and the state of PAPs, can be spread
RECONFIGURATION_SAMPLES: Final = 64
CHECKPOINT_SAMPLES: Final = 1_000
_SIGNATURE: Final = 64
#: seconds of the year 10000: no date is so late
_LAST_DATE: Final = 253_402_300_800
_LENGTH: Final = struct.Struct(">H")
_PREFIX: Final = b"penstock component sample 1\0"


class _Content(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The base of contents."""

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`component.sample`) for fields that do not fit each other."""


# ----------------------------------------------------------------------------------------------------------------------
# Joining and configurations.


class JoinRequest(_Content, frozen=True, tag="join"):
    """A newcomer asks for a role."""

    key: bytes
    kind: str
    requested_role: str
    #: signed certificates that may satisfy the rules of the role: component certificates and appointments
    certificates: tuple[bytes, ...] = ()
    #: the certificates of roles that it has active in this domain, as other components
    active_roles: tuple[bytes, ...] = ()
    #: the public key to which topic keys are sealed
    box_key: bytes = b""

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`component.sample`) for a key of another length."""
        PublicKey(self.key)


class PolicyText(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A policy for decision points, with the identity and the change time that answers name."""

    id: str
    revision: str
    changed: float
    #: XACML as XML or JSON
    text: bytes


class RoleConfiguration(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a role gives to the components that have it: a row of the table of component roles."""

    kind: str
    write: tuple[str, ...]
    read: tuple[str, ...]
    combining: dict[str, str] = {}
    priorities: dict[str, int] = {}
    policies: tuple[PolicyText, ...] = ()

    @property
    def topics(self) -> TopicsList:
        """The topics-list. Raises `MalformedError` (`component.topic`), `RefusedError` (`component.topics-list`)."""
        found = TopicsList.of(self.write, self.read)
        found.verify_for(ComponentKind(self.kind))
        return found


class Configuration(_Content, frozen=True, tag="conf"):
    """The configuration of one component, or the refusal of its request to join."""

    domain: str
    id: str
    #: the configuration number of the domain from which it holds
    number: int
    #: the signed `ComponentCertificate`; empty if the request is refused
    certificate: bytes = b""
    #: by `policy`, `information` and `decision`: an algorithm or a mode
    combining: dict[str, str] = {}
    #: by policy, or by the domain of information or decisions
    priorities: dict[str, int] = {}
    policies: tuple[PolicyText, ...] = ()
    #: LS in seconds
    lifespan: float = 5.0
    #: LB1, LB2 and LB3 in seconds
    budgets: tuple[float, float, float] = (0.05, 0.5, 5.0)
    #: seconds after which a writer of QPEP or QPDP counts as gone, and for which the component may work without a
    #: word of the PAPs (see `ConfigurationLease`); 0 for no lease
    lease: float = 0.0
    #: the component's box key, and a `PrivateConfiguration` that is sealed to it, if the domain seals its topics
    box_key: bytes = b""
    private: bytes = b""
    #: the same configuration, sealed to the PAPs
    recorded: bytes = b""
    #: the request that this answers, as `join_id` gives it
    join: bytes = b""
    #: why the request is refused: an error code
    refusal: str = ""
    #: the changes of roles that this rests on, for the other PAPs
    role_changes: tuple[bytes, ...] = ()
    #: the expected time of its number, if not all have applied it: a newcomer asks nothing before
    since: float = 0.0
    #: the number of the last `ConfigurationLease` before it
    grant: int = 0

    def verify_fields(self) -> None:
        """Raise `MalformedError` for a configuration that is neither given nor refused, or both."""
        _check_names(self.domain, self.id)
        if bool(self.certificate) is bool(self.refusal):
            raise _malformed("a configuration has either a certificate or a refusal")
        _check_time(self.since)
        _ = self.levels

    @property
    def levels(self) -> TopicLevels:
        """The values of Table 3. Raises `MalformedError` (`component.levels`)."""
        lb1, lb2, lb3 = self.budgets
        return TopicLevels(lb1=lb1, lb2=lb2, lb3=lb3, lifespan=self.lifespan, lease=self.lease or math.inf)


class Reconfiguration(_Content, frozen=True, tag="reconf"):
    """New configurations of the roles of those who read the topic, and certificates that end with the old one."""

    #: the configuration number that this leads to
    number: int
    #: no component applies it before
    expected: float
    #: by role, as `ER(1)`
    roles: dict[str, RoleConfiguration] = {}
    #: by component: its new certificate
    certificates: dict[str, bytes] = {}
    #: components whose earlier certificates end with this, whether they get another one or not
    withdrawn: tuple[str, ...] = ()
    #: by component: a `PrivateConfiguration` with new topic keys, sealed to its box key
    private: dict[str, bytes] = {}
    #: a large one is announced in parts: which one of how many this is, and of which announcement
    part: int = 1
    parts: int = 1
    announcement: int = 0

    def verify_fields(self) -> None:
        """Raise `MalformedError` for a part that cannot be."""
        if not 1 <= self.part <= self.parts <= RECONFIGURATION_SAMPLES:
            raise _malformed("it is a part of a reconfiguration that cannot be")

    def agrees(self, other: "Reconfiguration") -> bool:
        """Return whether this announces the same as another one, maybe of another PAP."""
        return all(getattr(self, name) == getattr(other, name) for name in ("number", "expected", "roles", "withdrawn"))

    def changed(self, configuration: Configuration, role: str) -> Configuration:
        """Return the configuration of a component with a role after this: the same one if nothing changes for it."""
        found, certificate = self.roles.get(role), self.certificates.get(configuration.id)
        if found is None and certificate is None:
            return configuration
        changed = msgspec.structs.replace(
            configuration, number=self.number, certificate=certificate or configuration.certificate, role_changes=()
        )
        if found is None:
            return changed
        return msgspec.structs.replace(
            changed, combining=found.combining, priorities=found.priorities, policies=found.policies
        )


class SpecifiedEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The specified policy that a plan is about: its author and name, the sample of SPOL, and its identity."""

    principal: str
    name: str
    component: str
    number: int
    policy: str


class ReconfigurationPlan(_Content, frozen=True, tag="plan"):
    """What the owner of CONF is about to do. Other PAPs follow it."""

    #: of a reconfiguration; 0 if roles change alone
    number: int = 0
    expected: float = 0.0
    #: by role: its new configuration, and None if the role ends
    roles: dict[str, RoleConfiguration | None] = {}
    #: changes of roles, as `penstock.roles.engine.change_to_sexp` writes them
    role_changes: tuple[bytes, ...] = ()
    #: why: shown to people
    reason: str = ""
    #: the policy of a PSP that this applies
    specified: SpecifiedEntry | None = None
    #: whether topic keys change
    rekey: bool = False


class BaseTime(_Content, frozen=True, tag="base"):
    """The earliest apply time of a reconfiguration, when all have applied it or were withdrawn."""

    number: int
    time: float


class ConfigurationLease(_Content, frozen=True, tag="lease"):
    """A PAP's word that no reconfiguration after a number has an expected time before `until`.

    A component that knows all reconfigurations up to the number works until then, and longer if another one follows.
    """

    #: the configuration number
    number: int
    #: grows with each one, whichever PAP gives it
    grant: int
    until: float
    #: whether earlier ones end with this one, so that a reconfiguration can come soon; components answer it
    recall: bool = False

    def verify_fields(self) -> None:
        """Raise `MalformedError` for a time that is none."""
        _check_time(self.until)


class LeaseReturned(_Content, frozen=True, tag="returned"):
    """A component works by no `ConfigurationLease` from before this grant any more."""

    grant: int


#: why PAPs end the role of a component that they miss: it has not applied a reconfiguration, or its lease has run out
NOT_APPLIED: Final = "component.not-applied"
SILENT: Final = "component.silent"
MISSED: Final = frozenset({NOT_APPLIED, SILENT})
#: seconds in which such a component learns it, if it still runs
UNAWARE: Final = 60.0


class Withdrawal(_Content, frozen=True, tag="withdrawal"):
    """Roles that have ended: by component, the record of its role. Their certificates end immediately.

    `missed` has the codes of those that a PAP ended because it missed a component: it can join again. A component's
    earlier roles ended before. For newcomers, `replaced` says which certificates were replaced.
    """

    records: dict[str, str]
    #: by component: `component.not-applied` or `component.silent`
    missed: dict[str, str] = {}
    #: by component: the configuration number before which its certificates have ended
    replaced: dict[str, int] = {}

    def honest_until(self, component: str, time: float) -> float:
        """Return until when a component may honestly write with a role that ended at a time: it may not know it yet."""
        return time + UNAWARE if component in self.missed else time


class DomainCheckpoint(_Content, frozen=True, tag="checkpoint"):
    """A part of the state of a domain's PAPs, after which CONF needs nothing that was there before."""

    #: which one of how many parts this is, and of which checkpoint
    part: int
    parts: int
    checkpoint: int
    #: bytes of a `RegistryState`
    data: bytes

    def verify_fields(self) -> None:
        """Raise `MalformedError` for a part that cannot be."""
        if not 1 <= self.part <= self.parts <= CHECKPOINT_SAMPLES:
            raise _malformed("it is a part of a checkpoint that cannot be")


class AppliedTime(_Content, frozen=True, tag="applied"):
    """A component has applied a reconfiguration."""

    number: int
    time: float


class Departure(_Content, frozen=True, tag="departure"):
    """The writer leaves the domain: its role ends."""


# ----------------------------------------------------------------------------------------------------------------------
# Requests and replies.


class RequiredNames(_Content, frozen=True, tag="required"):
    """Attributes that a PDP requires, or actions on resource types that a PEP asks about. None when it leaves."""

    names: tuple[str, ...] = ()


class DecisionRequest(_Content, frozen=True, tag="dreq"):
    """The written form of an `AccessQuestion`."""

    question: bytes

    @classmethod
    def of(cls, question: AccessQuestion) -> "DecisionRequest":
        """Return the request for a question."""
        return cls(question.written)

    @property
    def asked(self) -> AccessQuestion:
        """Return the question. Raises `MalformedError` (`pdp.request`), `LimitError` (`pdp.limit`)."""
        return AccessQuestion.from_bytes(self.question)


class SampleDuty(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An obligation or an advice: its id, and the id, data type and written value of each attribute."""

    id: str
    assigned: tuple[tuple[str, str, str], ...] = ()


class SampleRevision(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A policy that a decision rests on: its identity, its revision, and when it was last changed."""

    id: str
    revision: str
    changed: float


class DecisionReply(_Content, frozen=True, tag="drep"):
    """A decision about the question of a request."""

    domain: str
    id: str
    #: the number of the request's sample
    number: int
    #: the digest of the question
    question: bytes
    effect: AnswerEffect
    rests_on: tuple[SampleRevision, ...] = ()
    #: why the effect is Indeterminate
    status: str = ""
    obligations: tuple[SampleDuty, ...] = ()
    advice: tuple[SampleDuty, ...] = ()

    def verify_fields(self) -> None:
        """Raise `MalformedError` for an Indeterminate without a status, a status without, or a wrong change time."""
        if bool(self.status) is not (self.effect is AnswerEffect.INDETERMINATE):
            raise _malformed("exactly the replies that are Indeterminate have a status")
        if not all(0 <= one.changed < _LAST_DATE for one in self.rests_on):
            raise _malformed("a change time is out of range")


class AttributeQuery(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Attributes of one entity: its category as XACML names it, its type and id, and the names of the attributes."""

    category: str
    type: str
    id: str
    names: tuple[str, ...]


class InformationRequest(_Content, frozen=True, tag="ireq"):
    """A decision point asks for attributes."""

    queries: tuple[AttributeQuery, ...]


FieldValue: TypeAlias = str | bool | int | float | list[str | bool | int | float] | None


class InformationField(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One attribute of an entity: its value (a list is a bag), and when it last changed."""

    category: str
    type: str
    id: str
    name: str
    value: FieldValue
    changed: float


class InformationReply(_Content, frozen=True, tag="irep"):
    """Attributes that an information point knows, of those that were asked for."""

    domain: str
    id: str
    #: the number of the request's sample
    number: int
    fields: tuple[InformationField, ...] = ()

    def verify_fields(self) -> None:
        """Raise `MalformedError` for a value that is not a finite number."""
        for field in self.fields:
            for value in field.value if isinstance(field.value, list) else (field.value,):
                if isinstance(value, float) and not math.isfinite(value):
                    raise _malformed("an attribute is not a finite number")


# ----------------------------------------------------------------------------------------------------------------------
# Policy specification.


class SpecifiedPolicy(_Content, frozen=True, tag="spol"):
    """A policy that a PSP, or another PAP, submits in a language; without a text, it withdraws the policy."""

    name: str
    language: str
    text: bytes = b""


class PolicyApplied(_Content, frozen=True, tag="apol"):
    """What became of a specified policy: the identity it was given and when it applies, or a refusal."""

    domain: str
    id: str
    #: the number of the SPOL sample
    number: int
    policy: str = ""
    time: float = 0.0
    refusal: str = ""


class NewTopicKeys(_Content, frozen=True, tag="keys"):
    """The topic keys from a configuration number on, for a PSP: it reads no reconfigurations."""

    domain: str
    id: str
    number: int
    #: sealed to the component alone
    private: bytes


SampleContent: TypeAlias = (
    JoinRequest
    | Configuration
    | Reconfiguration
    | ReconfigurationPlan
    | BaseTime
    | ConfigurationLease
    | Withdrawal
    | DomainCheckpoint
    | AppliedTime
    | LeaseReturned
    | Departure
    | RequiredNames
    | DecisionRequest
    | DecisionReply
    | InformationRequest
    | InformationReply
    | SpecifiedPolicy
    | PolicyApplied
    | NewTopicKeys
)
#: which contents a type of topic can have
CONTENTS: Final[Mapping[TopicKind, tuple[type[_Content], ...]]] = {
    TopicKind.JOIN: (JoinRequest,),
    TopicKind.CONF: (
        Configuration,
        ReconfigurationPlan,
        Withdrawal,
        BaseTime,
        ConfigurationLease,
        DomainCheckpoint,
    ),
    **dict.fromkeys(
        (TopicKind.RPEP, TopicKind.RPDP, TopicKind.RPIP, TopicKind.RPLP),
        (Reconfiguration, BaseTime, ConfigurationLease, Withdrawal),
    ),
    **dict.fromkeys(
        (TopicKind.APEP, TopicKind.APDP, TopicKind.APIP, TopicKind.APLP), (AppliedTime, LeaseReturned, Departure)
    ),
    TopicKind.QPEP: (RequiredNames,),
    TopicKind.QPDP: (RequiredNames,),
    TopicKind.DREQ: (DecisionRequest,),
    TopicKind.DREP: (DecisionReply,),
    TopicKind.IREQ: (InformationRequest,),
    TopicKind.IREP: (InformationReply,),
    TopicKind.SPOL: (SpecifiedPolicy, Departure),
    TopicKind.APOL: (PolicyApplied, NewTopicKeys),
}


class ComponentSample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a writer signs. See the module."""

    domain: str
    #: the topic instance, as `DREQ_1`
    topic: str
    #: the id of the writer
    id: str
    #: another one in each sample of a writer, growing
    number: int
    time: float
    #: the configuration number under which it was written
    configuration: int
    content: SampleContent

    @property
    def instance(self) -> TopicInstance:
        """Return the topic instance. Raises `MalformedError` (`component.topic`)."""
        return TopicInstance.parse(self.topic)


def join_id(sample: ComponentSample) -> bytes:
    """Return what identifies a request to join: nobody else can make one with the same key, id and number."""
    key = sample.content.key if isinstance(sample.content, JoinRequest) else b""
    return sha256(b"%b%b.%d" % (key, sample.id.encode(), sample.number)).digest()


def sample_key(sample: ComponentSample) -> str:
    """Return the key under which a sample is written. See `penstock.authority.components.exchange.topics`."""
    content = sample.content
    match content:
        case DecisionRequest() | InformationRequest():
            return request_sample_key(sample.domain, sample.id, sample.number)
        case DecisionReply() | InformationReply():
            return reply_sample_key(content.domain, content.id, content.number, sample.id)
        case Configuration() | PolicyApplied() | NewTopicKeys():
            return component_key(content.domain, content.id)
        case ReconfigurationPlan() | BaseTime() | ConfigurationLease() | DomainCheckpoint() if sample.topic == "CONF_1":
            return PLANS_KEY
        case Withdrawal() if sample.topic == "CONF_1":
            return WITHDRAWALS_KEY
    return component_key(sample.domain, sample.id)


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decode: Final = msgspec.msgpack.Decoder(ComponentSample).decode


def sample_bytes(sample: ComponentSample, certificate: bytes, key: Signer) -> bytes:
    """Sign a sample, and return it as it travels.

    Raises `LimitError` (`component.limit`), and as `read_sample`: a sample that cannot be read is not signed.
    """
    body = _encode(sample)
    _read_body(body)
    whole = b"".join((_LENGTH.pack(len(certificate)), certificate, body, key.sign(_PREFIX + body)))
    if len(whole) > FABRIC_BYTES:
        raise LimitError(
            "component.limit",
            f"a sample for {sample.topic} has {len(whole)} bytes, more than {FABRIC_BYTES}",
            hint="use fewer or shorter policies",
        )
    return whole


class UnverifiedSample(msgspec.Struct, frozen=True):
    """A sample as it was read. Nothing in it may be believed yet."""

    sample: ComponentSample
    certificate: bytes
    body: bytes
    signature: bytes

    def verify(self, key: PublicKey) -> None:
        """Verify the signature. Raises `RefusedError` (`key.bad-signature`)."""
        key.verify(_PREFIX + self.body, self.signature)


def read_sample(data: bytes) -> UnverifiedSample:
    """Read a sample: (1) its parts, (2) the body in its one form, (3) a content that fits the topic.

    Raises `MalformedError`: `component.sample`, `component.topic`, `component.name`.
    """
    if len(data) < _LENGTH.size + _SIGNATURE:  # (1)
        raise _malformed("it is too short")
    begin = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    certificate, body, signature = data[_LENGTH.size : begin], data[begin:-_SIGNATURE], data[-_SIGNATURE:]
    return UnverifiedSample(_read_body(body), certificate, body, signature)


def _read_body(body: bytes) -> ComponentSample:
    try:
        sample = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _malformed("its body is not that of a sample") from None
    if _encode(sample) != body:  # (2)
        raise _malformed("its body is not in canonical form")
    _check_names(sample.domain, sample.id)
    if not 0 <= sample.time < _LAST_DATE or sample.number < 0 or sample.configuration < 0:
        raise _malformed("its time or one of its numbers is out of range")
    content = sample.content
    if not isinstance(content, CONTENTS[sample.instance.kind]):  # (3)
        raise _malformed(f"its content is not one of {sample.topic}")
    content.verify_fields()
    return sample


def _check_time(time: float) -> None:
    if not 0 <= time < math.inf:
        raise _malformed("a time is out of range")


def _check_names(domain: str, component: str) -> None:
    check_component_name(domain)
    check_component_name(component)


def _malformed(why: str) -> MalformedError:
    return MalformedError("component.sample", f"not a sample of a component: {why}")
