"""Secure event types: definitions that carry the proof of who made them (paper 5, chapter 4 and section 5.2).

    (event-type-definition …)
    (signature (hash sha256 <bytes>) (public-key …) <bytes>)

The parts of a definition are in `penstock.model.types`, and `definition_to_sexp` writes them. The owner in the name
and the key of the signature make a definition self-certifying: every holder can check it. Reading gives an
`UnverifiedType`. Only `verify_type` returns a `VerifiedType`. Its checks, in this order:

1. the signature is the key's, over the canonical definition;
2. the signer is the owner, or the credentials give it the right to manage the type: wholly, or each single operation
   that leads from the previous version to this one, which is compared with it;
3. a type whose name is reserved for topics is a topic, and only topics extend topics;
4. a type that extends another one is made by a principal that the parent's owner lets add attributes to the parent,
   because subscribers to the parent will receive this type's events too; if the previous version
   extends the same parent already, keeping the parent needs no new right;
5. where a network is given, the signer may install types on it.

A type is valid while the credentials used in these checks are valid. Each definition is verified once, however many
others lead to it, and a definition that leads back to itself is refused.
"""

import base64
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from penstock.codec.sexp import SExp, canonical, parse, text
from penstock.codec.sexp import field as sexp_field
from penstock.codec.values import spec_from_sexp, spec_to_sexp
from penstock.crypto import PublicKey, SigningKey, digest
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import KEY, THRESHOLD, Principal
from penstock.model.topics import TopicName, check_topic, topic_definition
from penstock.model.types import AttributeDefinition, EventType, Operation, Sealing, TypeDefinition, changes
from penstock.trust.capabilities import Right, network_request, type_request
from penstock.trust.certificates import verify_certificate
from penstock.trust.credentials import CertificateVerifier, Credentials, UnverifiedCredentials, collect_credentials
from penstock.trust.discovery import Evidence, OnlineChecker, follow, no_online_checker, sift
from penstock.trust.explain import AuthorityQuestion, refusal
from penstock.trust.limits import TRUST_LIMITS, TrustLimits
from penstock.trust.refusals import LackedRight
from penstock.trust.tags import Tag
from penstock.trust.validity import ALWAYS, Validity

# ----------------------------------------------------------------------------------------------------------------------
# The written form of event type definitions, which is signed:
#
#     (event-type-definition (name <owner> <name> <version>) (extends <owner> <name> <version>) (previous <version>)
#                            (seal event | attribute) (blinded) (signed)
#                            (attributes (attribute <name> <uid> <kind> <domain>) …)
#                            (credentials …))
#
# Reading verifies nothing.


_HEAD: Final = b"event-type-definition"
_FIELDS: Final = frozenset(
    {b"name", b"extends", b"previous", b"seal", b"blinded", b"signed", b"attributes", b"credentials"}
)


def definition_to_sexp(definition: TypeDefinition, credentials: Credentials) -> SExp:
    """Return the form that is signed."""
    parts: list[SExp] = [(b"name", *_name_parts(definition.name))]
    if definition.extends is not None:
        parts.append((b"extends", *_name_parts(definition.extends)))
    if definition.previous is not None:
        parts.append((b"previous", definition.previous.encode()))
    if definition.sealing is not Sealing.NONE:
        parts.append((b"seal", definition.sealing.encode()))
    if definition.blinded:
        parts.append((b"blinded",))
    if definition.signed:
        parts.append((b"signed",))
    attributes = tuple(
        (b"attribute", a.name.encode(), a.uid.encode(), *spec_to_sexp(a.spec)) for a in definition.attributes
    )
    parts.append((b"attributes", *attributes))
    if len(credentials) or credentials.quorums:
        parts.append((b"credentials", *credentials.to_sexp()[1:]))
    return (_HEAD, *parts)


def _name_parts(name: TypeName) -> tuple[bytes, bytes, bytes]:
    return str(name.owner).encode(), name.name.encode(), name.version.encode()


def read_definition(body: SExp, limits: TrustLimits) -> tuple[TypeDefinition, UnverifiedCredentials]:
    """Read a definition, and the credentials in it.

    Raises `MalformedError` (`type.malformed` and errors of the parts) and `LimitError`.
    """
    if not isinstance(body, tuple) or not body or body[0] != _HEAD:
        raise MalformedError(
            "type.malformed", "not an event type definition", hint="expected `(event-type-definition …)`"
        )
    for part in body[1:]:
        if not isinstance(part, tuple) or not part or part[0] not in _FIELDS:
            raise MalformedError("type.malformed", "an event type definition has a field that is not known")
    name = sexp_field(body, b"name")
    attributes = sexp_field(body, b"attributes")
    if name is None or attributes is None:
        raise MalformedError("type.malformed", "an event type definition lacks its name or its attributes")
    extends = sexp_field(body, b"extends")
    previous = sexp_field(body, b"previous")
    if previous is not None and len(previous) != 2:
        raise MalformedError("type.malformed", "`previous` names one version")
    definition = TypeDefinition(
        _read_name(name[1:]),
        tuple(_read_attribute(attribute) for attribute in attributes[1:]),
        None if extends is None else _read_name(extends[1:]),
        None if previous is None else text(previous[1]),
        _read_sealing(sexp_field(body, b"seal")),
        _read_flag(sexp_field(body, b"blinded")),
        _read_flag(sexp_field(body, b"signed")),
    )
    credentials = sexp_field(body, b"credentials")
    bag = collect_credentials(credentials[1:], limits=limits) if credentials else UnverifiedCredentials()
    return definition, bag


def _read_name(parts: tuple[SExp, ...]) -> TypeName:
    if len(parts) != 3:
        raise MalformedError("type.malformed", "a type name is owner, name and version")
    return TypeName(Principal.parse(text(parts[0])), text(parts[1]), text(parts[2]))


def _read_sealing(part: tuple[SExp, ...] | None) -> Sealing:
    match part:
        case None:
            return Sealing.NONE
        case (b"seal", (b"event" | b"attribute") as level):
            return Sealing(level.decode())
    raise MalformedError("type.malformed", "a type is sealed by `event` or by `attribute`")


def _read_flag(part: tuple[SExp, ...] | None) -> bool:
    if part is not None and len(part) != 1:
        raise MalformedError("type.malformed", "a field that says yes has nothing in it")
    return part is not None


def _read_attribute(value: SExp) -> AttributeDefinition:
    match value:
        case (b"attribute", bytes(name), bytes(uid), *spec):
            return AttributeDefinition(text(name), text(uid), spec_from_sexp(tuple(spec)))
    raise MalformedError("type.malformed", "not an attribute", hint="expected `(attribute <name> <uid> <kind>)`")


# ----------------------------------------------------------------------------------------------------------------------
# Sign, read and verify event types and topics.


_OPERATIONS: Final = {
    Operation.ADD: Right.MANAGE_ADD,
    Operation.REMOVE: Right.MANAGE_REMOVE,
    Operation.RENAME: Right.MANAGE_RENAME,
    Operation.RETYPE: Right.MANAGE_RETYPE,
}


@dataclass(frozen=True, slots=True)
class UnverifiedType:
    """A signed type definition as it was read. Nothing in it may be believed yet."""

    definition: TypeDefinition
    credentials: UnverifiedCredentials
    body: SExp = field(repr=False)
    key: PublicKey
    signature: bytes = field(repr=False)
    fingerprint: bytes = field(repr=False)

    def to_sexp(self) -> SExp:
        """Return definition and signature as one sequence."""
        hashed = digest(self.body)
        return (
            b"sequence",
            self.body,
            (b"signature", (b"hash", b"sha256", hashed), self.key.to_sexp(), self.signature),
        )

    def to_bytes(self) -> bytes:
        """Return the signed definition in canonical form."""
        return canonical(self.to_sexp())


@dataclass(frozen=True, slots=True)
class VerifiedType:
    """A type whose signature and credentials were verified. Only `verify_type` makes one.

    `because` names the credentials that it depends on, `validity` says when they are valid. `parent` is the type it
    extends.
    """

    id: str
    event_type: EventType
    definition: TypeDefinition
    signer: Principal
    validity: Validity
    because: tuple[str, ...]
    network: NetworkName | None = None
    parent: "VerifiedType | None" = field(default=None, repr=False)


class TypeSource(Protocol):
    """A source of definitions: a registry, a folder, a cache. It need not be trusted."""

    def __call__(self, name: TypeName, /) -> UnverifiedType | None:
        """Return the definition of that name, if it is there."""


def no_types(_name: TypeName) -> UnverifiedType | None:
    """Know only this type: for definitions without parents."""
    return None


def sign_type(definition: TypeDefinition, key: SigningKey, credentials: Credentials | None = None) -> UnverifiedType:
    """Sign a definition, with the credentials that a verifier will need.

    Signing is not a proof: the result is verified like any other. Raises `MalformedError` for a definition that cannot
    be written down.
    """
    body = definition_to_sexp(definition, credentials or Credentials())
    return read_type_parts(body, key.public, key.sign(canonical(body)))


def read_type(data: bytes, *, limits: TrustLimits = TRUST_LIMITS) -> UnverifiedType:
    """Read a signed definition in any S-expression form.

    Raises `MalformedError` (`type.malformed` and errors of the parts), `RefusedError`
    (`type.signature-mismatch`), `LimitError`.
    """
    match parse(data, limits=limits):
        case (
            b"sequence",
            tuple(body),
            (b"signature", (b"hash", b"sha256", bytes(hashed)), tuple(key), bytes(signature)),
        ):
            if hashed != digest(body):
                raise RefusedError(
                    "type.signature-mismatch",
                    "the signature belongs to another definition, or the definition was changed",
                    hint="fetch the original definition from its owner",
                )
            return read_type_parts(body, PublicKey.from_sexp(key), signature, limits=limits)
    raise MalformedError(
        "type.malformed",
        "not a signed event type",
        hint="expected `(sequence (event-type-definition …) (signature …))`",
    )


def read_type_parts(
    body: SExp, key: PublicKey, signature: bytes, *, limits: TrustLimits = TRUST_LIMITS
) -> UnverifiedType:
    """Read a definition with a separate signature. Raises as `read_type`."""
    definition, credentials = read_definition(body, limits)
    return UnverifiedType(definition, credentials, body, key, signature, digest((body, key.raw, signature)))


def verify_type(  # noqa: PLR0913  # each argument is one of the facts that a decision rests on
    unverified: UnverifiedType,
    now: datetime,
    *,
    types: TypeSource = no_types,
    network: NetworkName | None = None,
    verifier: CertificateVerifier = verify_certificate,
    online: OnlineChecker = no_online_checker,
    limits: TrustLimits = TRUST_LIMITS,
) -> VerifiedType:
    """Verify a type definition; the module's docstring lists the checks.

    `types` is asked for the parent, and for the previous version where a single-operation right has to be compared
    with it. Raises `RefusedError`: `key.bad-signature`, `cert.wrong-key`, `type.forged`, `type.over-reach`,
    `type.not-installable`, `type.extends-foreign`, `type.unknown-parent`, `type.unknown-previous`;
    `MalformedError` (`type.*`, `type.cycle` among them, `topic.definition`); `LimitError` (`type.limit`,
    `topic.limit`).
    """
    return _Verification(now, types, network, verifier, online, limits).verify(unverified, 0)


@dataclass(frozen=True, slots=True)
class _Verification:
    """Follows a definition to its parents and predecessors. `known` has the verified ones, and None for those begun."""

    now: datetime
    types: TypeSource
    network: NetworkName | None
    verifier: CertificateVerifier
    online: OnlineChecker
    limits: TrustLimits
    known: dict[bytes, VerifiedType | None] = field(default_factory=dict)

    def verify(self, unverified: UnverifiedType, depth: int) -> VerifiedType:
        if unverified.fingerprint in self.known:
            verified = self.known[unverified.fingerprint]
            if verified is None:
                name = unverified.definition.name
                raise MalformedError("type.cycle", f"`{name.name}` is its own ancestor or predecessor", type=name)
            return verified
        if depth > self.limits.type_history:
            raise LimitError("type.limit", f"more than {self.limits.type_history} definitions must be followed")
        self.known[unverified.fingerprint] = None
        verified = self.known[unverified.fingerprint] = self._verify(unverified, depth)
        return verified

    def _verify(self, unverified: UnverifiedType, depth: int) -> VerifiedType:
        definition = unverified.definition
        # (1) section 4.2.2: authenticity and integrity.
        unverified.key.verify(canonical(unverified.body), unverified.signature)
        signer = unverified.key.principal
        credentials = unverified.credentials.verify(self.verifier)
        proof = _Proof(credentials, sift(credentials, self.now, self.online), signer, self.limits)
        # (2) section 4.3.3: the link between the signature and the owner in the name.
        self._check_manager(definition, proof, depth)
        # (3) section 5.5: rights on topics are read from these names.
        check_topic(definition)
        # (4) decision 2 of the house plan: sub-types inherit ids, and with them their readers (ADR 0007).
        parent = self._parent(definition, proof, depth)
        # (5) section 5.2.1.
        if self.network is not None:
            proof.need(Right.INSTALL, self.network, "type.not-installable")
        return VerifiedType(
            f"type:{base64.b32encode(unverified.fingerprint).decode().rstrip('=').lower()}",
            EventType.of(definition, None if parent is None else parent.event_type),
            definition,
            signer,
            proof.validity,
            tuple(dict.fromkeys(proof.because)),
            self.network,
            parent,
        )

    def _check_manager(self, definition: TypeDefinition, proof: "_Proof", depth: int) -> None:
        name = definition.name
        # Principals compare by digest alone, but tags and attribute ids hold their text: it must be the true one.
        if name.owner.scheme != (THRESHOLD if name.owner in proof.evidence.quorums else KEY):
            raise RefusedError(
                "type.forged",
                f"the owner of `{name.name}` is written as a {name.owner.scheme} principal, which is not shown",
                hint="the credentials of a type that a quorum owns hold the quorum",
            )
        if proof.signer == name.owner:
            return
        # A grant may name the version that may be changed, so the request is about the previous version.
        subject = TypeName(name.owner, name.name, definition.previous or name.version)
        whole = type_request(subject, Right.MANAGE)
        if proof.has(name.owner, whole):
            return
        if definition.previous is None:
            proof.need(Right.MANAGE, subject, "type.forged")
        previous = self._previous(definition, proof, depth).definition
        if previous.protection != definition.protection:
            # Not a single operation: it decides what the network between may read.
            proof.need(Right.MANAGE, subject, "type.over-reach")
        needed = {_OPERATIONS[change.operation] for change in changes(previous, definition)}
        if Right.MANAGE_RETYPE in needed and not proof.has(name.owner, type_request(subject, Right.MANAGE_RETYPE)):
            # Section 4.3: changing a type is removing one attribute and adding another.
            needed = needed - {Right.MANAGE_RETYPE} | {Right.MANAGE_ADD, Right.MANAGE_REMOVE}
        for right in sorted(needed):
            proof.need(right, subject, "type.over-reach")
        if not needed and not any(proof.has(name.owner, type_request(subject, r)) for r in _OPERATIONS.values()):
            proof.need(Right.MANAGE, subject, "type.forged")

    def _previous(self, definition: TypeDefinition, proof: "_Proof", depth: int) -> VerifiedType:
        name = TypeName(definition.name.owner, definition.name.name, definition.previous or "")
        found = self._lookup(name)
        if found is None:
            raise RefusedError(
                "type.unknown-previous",
                f"version {name.version} of `{name.name}` is not known, so the change cannot be checked",
                hint="give the previous version as well",
            )
        # Compared before it is verified: only a predecessor is worth following.
        changes(found.definition, definition)
        previous = self.verify(found, depth + 1)
        proof.rest_on(previous.validity, previous.because)
        return previous

    def _parent(self, definition: TypeDefinition, proof: "_Proof", depth: int) -> VerifiedType | None:
        if definition.extends is None:
            return None
        found = self._lookup(definition.extends)
        if found is None:
            raise RefusedError(
                "type.unknown-parent",
                f"`{definition.name.name}` extends `{definition.extends.name}`, which is not known",
                hint="give the parent's definition as well",
                parent=definition.extends,
            )
        owner, request = definition.extends.owner, type_request(definition.extends, Right.MANAGE_ADD)
        if not proof.has(owner, request) and not self._keeps_parent(definition, proof, depth):
            proof.need(Right.MANAGE_ADD, definition.extends, "type.extends-foreign")
        parent = self.verify(found, depth + 1)
        proof.rest_on(parent.validity, parent.because)
        return parent

    def _keeps_parent(self, definition: TypeDefinition, proof: "_Proof", depth: int) -> bool:
        """Return whether the previous version is known, and extends the same parent by its own right."""
        name = definition.name
        if definition.previous is None or self._lookup(TypeName(name.owner, name.name, definition.previous)) is None:
            return False
        return self._previous(definition, proof, depth).definition.extends == definition.extends

    def _lookup(self, name: TypeName) -> UnverifiedType | None:
        found = self.types(name)
        if found is not None and found.definition.name != name:
            raise RefusedError("type.forged", f"a definition was offered as `{name.name}` that is another one")
        return found


class _Proof:
    """Collects the credentials that a verification depends on."""

    def __init__(self, credentials: Credentials, evidence: Evidence, signer: Principal, limits: TrustLimits) -> None:
        self.credentials = credentials
        self.evidence = evidence
        self.signer = signer
        self.validity = ALWAYS
        self.because: list[str] = []
        self._limits = limits

    def has(self, root: Principal, request: Tag) -> bool:
        """Add the best chain that grants the signer the whole request, and return whether there is one."""
        if root == self.signer:
            return True
        for grant in follow(self.evidence, root, self.signer, request, limits=self._limits).grants:
            if grant.tag == request:
                return self.rest_on(grant.validity, grant.because)
        return False

    def need(self, right: Right, about: TypeName | NetworkName, code: str) -> None:
        """Refuse unless the signer has the whole right."""
        asked = network_request(about, right) if isinstance(about, NetworkName) else type_request(about, right)
        if not self.has(about.owner, asked):
            question = AuthorityQuestion(self.credentials, self.evidence, about.owner, self.signer, asked)
            raise refusal(code, LackedRight(self.signer, right, about), question)

    def rest_on(self, validity: Validity, because: tuple[str, ...]) -> bool:
        both = self.validity.intersect(validity)
        if both is None:
            return False
        self.validity = both
        self.because += because
        return True


def sign_topic(topic: TopicName, key: SigningKey, credentials: Credentials | None = None) -> UnverifiedType:
    """Sign the definition of a topic, with the credentials that a verifier will need. Signing is not a proof."""
    return sign_type(topic_definition(topic), key, credentials)


def verify_topic(
    unverified: UnverifiedType,
    now: datetime,
    *,
    topics: TypeSource = no_types,
    network: NetworkName | None = None,
) -> VerifiedType:
    """Verify the definition of a topic. `topics` provides its super-topics.

    Raises `MalformedError` (`topic.type`) for an event type that is not a topic, and as `verify_type`.
    """
    TopicName.of_type(unverified.definition.name)
    return verify_type(unverified, now, types=topics, network=network)
