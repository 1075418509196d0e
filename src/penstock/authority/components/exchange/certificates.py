"""Role certificates of components: who a component is, its role, and its topics-list, signed by a PAP of the domain.

    (component-certificate (issuer <principal>) (domain <name>) (id <name>) (key <bytes>) (kind PEP|PDP|…)
                           (role <name>) (arguments <value> …) (record <id>) (home <domain>)
                           (topics (write <topic> …) (read <topic> …)) (since <n>) [(valid …)])

It is the role membership certificate (RMC) of OASIS for components: `record` is the credential record of the role at
the domain's PAPs, and a PAP of another domain can accept it as a prerequisite. `home` is the domain whose certificates
the role rests on: another one if the component has joined across domains. `since` is the configuration number from
which it holds: a reconfiguration that withdraws or replaces it names a greater one.

A component's own file names the principals that are PAPs of its domain (its administrators). A PAP has a certificate
that it issued to itself, and no topics-list: Table 2 says what it writes.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Final

from penstock.authority.components.exchange.topics import (
    CONCEPTUAL_ROLES,
    TOPICS,
    ComponentKind,
    TopicInstance,
    check_component_name,
)
from penstock.authority.components.exchange.topics_lists import TopicsList, role_text
from penstock.codec.sexp import Form
from penstock.codec.values import value_from_sexp, value_to_sexp
from penstock.crypto import PublicKey, Signer
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.model.values import Value
from penstock.trust.signed import Claim, bytes_form, malformed, parse_signed, sign_value
from penstock.trust.validity import ALWAYS, ValidityField

#: bytes of a certificate, and certificates that a component keeps after verification
CERTIFICATE_BYTES: Final = 32_768
CERTIFICATES_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class ComponentCertificate(Claim):
    """See the module."""

    HEAD: ClassVar = b"component-certificate"
    SIGNER: ClassVar = "issuer"
    issuer: Principal
    domain: str
    id: str
    #: the component's public key
    key: Annotated[bytes, bytes_form(32)]
    kind: ComponentKind
    role: str
    arguments: tuple[Annotated[Value, Form(value_to_sexp, value_from_sexp)], ...]
    record: str
    home: str
    topics: TopicsList
    since: int
    validity: ValidityField = ALWAYS

    def verify_fields(self) -> None:
        """Raise `MalformedError`: `component.name`, `evolution.malformed`."""
        for name in (self.domain, self.id, self.home):
            check_component_name(name)
        if self.validity.online:
            raise malformed("a component's certificate has no on-line test")

    @property
    def public(self) -> PublicKey:
        """The component's public key."""
        return PublicKey(self.key)

    @property
    def principal(self) -> Principal:
        """The component's principal."""
        return self.public.principal

    @property
    def role_name(self) -> str:
        """The role as people write it: `ER(1)`."""
        return role_text(self.role, self.arguments)

    def may_write(self, instance: TopicInstance) -> bool:
        """Return whether the component can write a topic: by its list, and a PAP by Table 2."""
        if self.kind is ComponentKind.PAP:
            return ComponentKind.PAP in TOPICS[instance.kind].writers
        return instance in self.topics.write


def record_number(record: str) -> int:
    """Return the number in the record of a role, which grows with each role of a component; -1 without one.

    >>> record_number("pdp1.1700000000000000")
    1700000000000000
    """
    number = record.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def administrator_certificate(key: Signer, domain: str, component: str, record: str = "0") -> bytes:
    """Return the certificate that a PAP issues to itself. Each of its runs has a record of its own."""
    return certificate_bytes(
        ComponentCertificate(
            key.principal,
            domain,
            component,
            key.public.raw,
            ComponentKind.PAP,
            CONCEPTUAL_ROLES[ComponentKind.PAP],
            (),
            record,
            domain,
            TopicsList(),
            0,
        ),
        key,
    )


def certificate_bytes(certificate: ComponentCertificate, key: Signer) -> bytes:
    """Sign a certificate. Raises as `sign_value`, and `RefusedError` (`component.topics-list`)."""
    certificate.topics.verify_for(certificate.kind)
    return sign_value(certificate, key).to_bytes()


def read_component_certificate(data: bytes) -> ComponentCertificate:
    """Read a certificate and verify its signature, but not who may issue it.

    Raises `MalformedError`, `LimitError`, `RefusedError`: as `read_signed` and its `verify`, and
    `component.topics-list`.
    """
    if len(data) > CERTIFICATE_BYTES:
        raise LimitError("component.limit", f"a certificate is longer than {CERTIFICATE_BYTES} bytes")
    certificate = parse_signed(data, ComponentCertificate).verify().value
    certificate.topics.verify_for(certificate.kind)
    return certificate


class ComponentCertificates:
    """Verifies the certificates of one domain, each only once. It has no clock: `now` is an argument."""

    def __init__(self, domain: str, administrators: frozenset[Principal]) -> None:
        self.domain = domain
        self.administrators = administrators
        self._known: OrderedDict[bytes, ComponentCertificate] = OrderedDict()

    def known(self, data: bytes) -> ComponentCertificate | None:
        """Return the certificate in these bytes, if it was verified before."""
        return self._known.get(data)

    def verify(self, data: bytes, now: datetime) -> ComponentCertificate:
        """Return the certificate in these bytes.

        (1) It is well-formed, and signed by its issuer. (2) It is for this domain. (3) An administrator issued it, and
        that of a PAP is the PAP's own. (4) It is valid now.

        Raises as `read_component_certificate`, and `RefusedError` (`component.certificate`).
        """
        found = self._known.get(data)
        if found is None:
            found = read_component_certificate(data)  # (1)
            if found.domain != self.domain:  # (2)
                raise _refused(f"it is for domain `{found.domain}`", found)
            if found.issuer not in self.administrators:  # (3)
                raise _refused(f"{found.issuer.short} is not an administrator of `{self.domain}`", found)
            if found.kind is ComponentKind.PAP and found.principal != found.issuer:
                raise _refused("a PAP issues its certificate itself", found)
            self._known[data] = found
            if len(self._known) > CERTIFICATES_KEPT:
                self._known.popitem(last=False)
        if found.validity is not ALWAYS and not found.validity.contains(now):  # (4)
            raise _refused("it is not valid now", found)
        return found


def _refused(why: str, certificate: ComponentCertificate) -> PenstockError:
    return RefusedError(
        "component.certificate",
        f"the certificate of component `{certificate.id}` is refused: {why}",
        hint="the component must join again",
        component=certificate.id,
        domain=certificate.domain,
    )
