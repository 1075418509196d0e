"""The operations of the admin API: the path, the fields and the answer of each.

All are POST requests with a JSON object, so that the caller's signature covers everything that is asked. Fields are
checked strictly: an unknown one is an error. `openapi` is made from the same classes.

| operation | right on the domain's network |
|---|---|
| change members, issue and revoke certificates | `administer` |
| register certificates | `connect` for those that the caller issued, `administer` for others |
| list members, certificates, changes and holders | `audit` |
| complete a chain | `connect` for the caller's own, `audit` for others |
| list validity statements, answer a one-time question | `connect` |
| open sessions, activate roles, appoint, have an own role or appointment certified, present one | `connect` |
| all other changes of roles | `administer` |
| say that a record has ended | none: another domain says it about its own records |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct

from penstock.authority.domain.domain_changes import (
    AddMember,
    MemberKind,
    RecordIssued,
    RegisterCertificates,
    RemoveMember,
    RevokeIssued,
    check_certificate_id,
)
from penstock.authority.domain.domain_ledger import DomainLedger, RecordedChange
from penstock.authority.domain.domain_state import DomainRequest, IssueRequest, Operation, RegisterRequest
from penstock.authority.domain.holders import TYPE_RIGHTS, TypeHolder, complete, holders
from penstock.authority.role_book import RoleBook, acts_alone
from penstock.codec.sexp import parse, transport
from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.model.instants import parse_end, parse_instant
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.values import Kind, check_value
from penstock.roles.credentials import AppointmentCertificate, accepted, certify, read_role_certificate
from penstock.roles.engine import (
    AcceptCredential,
    Appoint,
    DropCredential,
    RelyOnRecord,
    RoleOutcome,
    WithdrawAppointment,
    change_from_sexp,
)
from penstock.trust.capabilities import Right, describe_tag
from penstock.trust.certificates import Authorisation, Certificate, Subject, read_subject
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.explain import describe_subject
from penstock.trust.statements import OneTimeQuestion, OnlineKind, OnlineTerms
from penstock.trust.tags import parse_tag
from penstock.trust.validity import Validity, parse_validity

Answer: TypeAlias = dict[str, object]

#: how long a heartbeat is valid
HEARTBEAT: Final = timedelta(seconds=30)

# ----------------------------------------------------------------------------------------------------------------------
# Fields.

_PrincipalText = Annotated[str, Meta(min_length=1, max_length=80, description="a principal, `ed25519:…`")]
_Why = Annotated[str, Meta(max_length=1000, description="the reason, one line, which is recorded")]
_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Sexp = Annotated[str, Meta(min_length=1, max_length=200_000)]
_RecordId = Annotated[str, Meta(min_length=1, max_length=128, description="the id of a credential record")]
_CertificateId = Annotated[str, Meta(pattern="^cert:[a-z2-7]{52}$")]
_Time = Annotated[str, Meta(min_length=1, max_length=40, description="a time such as 2026-05-01T12:00Z")]
_TypeText = Annotated[str, Meta(min_length=1, max_length=400, description="`OWNER/NAME`, or `OWNER/NAME@VERSION`")]


class ListFields(Struct, forbid_unknown_fields=True, frozen=True):
    """No fields."""


class AddMemberFields(Struct, forbid_unknown_fields=True, frozen=True):
    """A member to add."""

    principal: _PrincipalText
    name: _Name
    kind: MemberKind = MemberKind.CLIENT
    why: _Why = ""


class RemoveMemberFields(Struct, forbid_unknown_fields=True, frozen=True):
    """A member to remove. The certificates that it was issued are revoked."""

    principal: _PrincipalText
    why: _Why = ""


class IssueFields(Struct, forbid_unknown_fields=True, frozen=True):
    """A certificate to issue: its subject, its right, and how long it is valid."""

    to: Annotated[_Sexp, Meta(description="a principal, or a name or threshold subject as an S-expression")]
    tag: Annotated[
        _Sexp, Meta(description="the right, as an S-expression: `(event-type OWNER NAME VERSION subscribe)`")
    ]
    propagate: bool = False
    not_before: _Time | None = None
    not_after: _Time | None = None
    lifetime: (
        Annotated[int, Meta(ge=1, le=10**9, description="seconds: short-lived, and renewed until `not_after`")] | None
    ) = None
    online: Annotated[
        list[_Sexp], Meta(max_length=4, description="on-line tests, each as an S-expression: `(online crl …)`")
    ] = []
    comment: Annotated[str, Meta(max_length=1000)] = ""
    why: _Why = ""


class AnswerFields(Struct, forbid_unknown_fields=True, frozen=True):
    """A verifier's question whether a certificate is valid now, as an S-expression."""

    question: _Sexp


class RevokeFields(Struct, forbid_unknown_fields=True, frozen=True):
    """Certificates to revoke, by their ids."""

    certificates: Annotated[list[_CertificateId], Meta(min_length=1, max_length=256)]
    why: _Why = ""


class RegisterFields(Struct, forbid_unknown_fields=True, frozen=True):
    """Certificates of others to register, each with its signature, as an S-expression."""

    certificates: _Sexp
    why: _Why = ""


class HolderFields(Struct, forbid_unknown_fields=True, frozen=True):
    """The type whose holders are listed."""

    type: _TypeText
    rights: Annotated[list[Right], Meta(max_length=20)] | None = None
    at: _Time | None = None


class CompleteFields(Struct, forbid_unknown_fields=True, frozen=True):
    """A right on a type or a network, for the caller or for another principal."""

    right: Right
    type: _TypeText | None = None
    network: _TypeText | None = None
    principal: _PrincipalText | None = None


class ChangesFields(Struct, forbid_unknown_fields=True, frozen=True):
    """The changes after a number, at most so many."""

    after: Annotated[int, Meta(ge=0, le=10**15)] = 0
    most: Annotated[int, Meta(ge=1, le=1000)] = 100


class RoleChangeFields(Struct, forbid_unknown_fields=True, frozen=True):
    """A change of roles, as an S-expression: `(open-session (session desk) (principal …))`."""

    change: _Sexp
    why: _Why = ""


class CertifyFields(Struct, forbid_unknown_fields=True, frozen=True):
    """A role or an appointment to certify for another domain, by the id of its record."""

    record: _RecordId
    to: _PrincipalText


class PresentFields(Struct, forbid_unknown_fields=True, frozen=True):
    """The certificate of another domain's role or appointment, with its signature, as an S-expression."""

    certificate: _Sexp


class EndedFields(Struct, forbid_unknown_fields=True, frozen=True):
    """Records of the calling domain that have ended."""

    records: Annotated[list[_RecordId], Meta(min_length=1, max_length=256)]


# ----------------------------------------------------------------------------------------------------------------------
# What they do.


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call: the domain, the types that the service knows, who calls, and when."""

    domain: DomainLedger
    types: Mapping[TypeName, VerifiedType]
    caller: Principal
    nonce: bytes
    now: datetime
    #: the domain's roles, if it has any
    book: RoleBook | None = None

    @property
    def roles(self) -> RoleBook:
        """The domain's roles as they are now. Raises `RefusedError` (`acs.no-roles`)."""
        if self.book is None:
            raise RefusedError("acs.no-roles", "the domain has no roles", hint="see `roles` in the domain file")
        self.book.current(self.now)
        return self.book

    def change(self, operation: Operation, why: str) -> tuple[RecordedChange, ...]:
        """Ask the domain for a change. Raises as `DomainLedger.ask`."""
        return self.domain.ask(DomainRequest(self.caller, operation, why, self.nonce), self.now)

    def require(self, right: Right) -> None:
        """Read the newest state, and check that the caller has a right on it. Raises as `DomainState.require`."""
        self.domain.refresh().require(self.caller, right, self.now)

    def type(self, text: str) -> VerifiedType:
        """Return a type that the service knows; without a version the last one that its file names.

        Raises `RefusedError` (`acs.unknown-type`), `MalformedError` (`name.malformed`).
        """
        name = TypeName.parse(text)
        found = [
            one for known, one in self.types.items() if known == name or ("@" not in text and known.key == name.key)
        ]
        if not found:
            raise RefusedError(
                "acs.unknown-type",
                f"the service does not know the type `{name.name}`",
                hint=did_you_mean(
                    name.name, {one.name for one in self.types}, "add its file to `types` in the domain file"
                ),
            )
        return found[-1]


def _add_member(call: ApiCall, fields: AddMemberFields) -> Answer:
    member = AddMember(Principal.parse(fields.principal), fields.kind, fields.name)
    return _changed(call.change(member, fields.why))


def _remove_member(call: ApiCall, fields: RemoveMemberFields) -> Answer:
    return _changed(call.change(RemoveMember(Principal.parse(fields.principal)), fields.why))


def _list_members(call: ApiCall, _fields: ListFields) -> Answer:
    call.require(Right.AUDIT)
    state = call.domain.state
    listed = (
        {"principal": str(one.principal), "kind": str(one.kind), "name": one.name, "since": one.since.isoformat()}
        for one in state.members.values()
    )
    return {"domain": state.name, "principal": str(state.begun()), "members": list(listed)}


def _issue(call: ApiCall, fields: IssueFields) -> Answer:
    check_value(Kind.STRING, fields.comment)
    validity = Validity.between(
        None if fields.not_before is None else parse_instant(fields.not_before),
        None if fields.not_after is None else parse_end(fields.not_after),
    )
    if fields.online:
        tests = parse_validity(tuple(parse(_bytes(test)) for test in fields.online)).online
        for test in tests:
            OnlineTerms.of(test)
        validity = replace(validity, online=tests)
    lifetime = None if fields.lifetime is None else timedelta(seconds=fields.lifetime)
    asked = IssueRequest(
        _subject(fields.to), parse_tag(parse(_bytes(fields.tag))), validity, fields.propagate, lifetime, fields.comment
    )
    return _changed(call.change(asked, fields.why))


def _revoke(call: ApiCall, fields: RevokeFields) -> Answer:
    ids = tuple(check_certificate_id(id_) for id_ in fields.certificates)
    return _changed(call.change(RevokeIssued(ids), fields.why))


def _register(call: ApiCall, fields: RegisterFields) -> Answer:
    credentials = read_credentials(_bytes(fields.certificates)).verify()
    return _changed(call.change(RegisterRequest(credentials), fields.why))


def _list_certificates(call: ApiCall, _fields: ListFields) -> Answer:
    call.require(Right.AUDIT)
    state = call.domain.state
    issued = [
        {
            **certificate_data(one.certificate),
            "by": str(one.by),
            "lifetime": one.lifetime,
            "renewed": one.renewal is not None,
            "superseded": one.id in state.renewed,
            "purpose": one.purpose,
            "revoked": one.id in state.revoked,
        }
        for one in state.issued.values()
    ]
    return {"issued": issued, "registered": [certificate_data(one) for one in state.registered.values()]}


def _holders(call: ApiCall, fields: HolderFields) -> Answer:
    call.require(Right.AUDIT)
    verified = call.type(fields.type)
    at = call.now if fields.at is None else parse_instant(fields.at)
    rights = TYPE_RIGHTS if fields.rights is None else tuple(dict.fromkeys(fields.rights))
    if any(right.on_network for right in rights):
        raise MalformedError("acs.fields", "rights on networks have no holders here", hint="name rights on event types")
    found = holders(call.domain.state, verified, at, rights)
    return {
        "type": str(verified.event_type.name),
        "at": at.isoformat(),
        "complete": not found.truncated,
        "holders": [_holder(one, verified) for one in found.holders],
    }


def _holder(one: TypeHolder, verified: VerifiedType) -> Answer:
    names = {attribute.id: attribute.name for attribute in verified.event_type.attributes}
    restriction = one.branch.as_dict(names)
    ends = one.validity.ends
    return {
        "holder": str(one.holder),
        "right": str(one.right),
        "restriction": {key: value for key, value in restriction.items() if key not in ("action", "because", "until")},
        "not_after": None if ends is None else ends.isoformat(),
        "chain": [certificate_data(link) for link in one.chain],
    }


def _complete(call: ApiCall, fields: CompleteFields) -> Answer:
    who = call.caller if fields.principal is None else Principal.parse(fields.principal)
    call.require(Right.CONNECT if who == call.caller else Right.AUDIT)
    if (fields.type is None) is (fields.network is None):
        raise MalformedError("acs.fields", "a right is on a type or on a network", hint="give `type` or `network`")
    if fields.right.on_network is not (fields.type is None):
        raise MalformedError("guard.action", f"`{fields.right}` does not apply to this")
    about = call.type(fields.type) if fields.type is not None else _network(fields.network or "")
    chain = complete(call.domain.state, who, fields.right, about, call.now)
    ends = chain.branch.when.validity.ends
    return {
        "principal": str(who),
        "right": str(fields.right),
        "certificates": transport(chain.credentials.to_sexp()).decode(),
        "chain": [certificate_data(one) for one in chain.credentials],
        "not_after": None if ends is None else ends.isoformat(),
        "others": chain.others,
    }


def _statements(call: ApiCall, _fields: ListFields) -> Answer:
    call.require(Right.CONNECT)
    state = call.domain.state
    found = [one.to_sexp() for one in state.statements.values()]
    if OnlineKind.ACTIVE in state.tests():
        found.append(state.heartbeat(call.now, HEARTBEAT, call.domain.signer).to_sexp())
    return {"statements": [transport(one).decode() for one in found]}


def _answer(call: ApiCall, fields: AnswerFields) -> Answer:
    call.require(Right.CONNECT)
    question = OneTimeQuestion.from_sexp(parse(_bytes(fields.question)))
    signed = call.domain.state.answer(question, call.caller, call.now, call.domain.signer)
    return {"statement": transport(signed.to_sexp()).decode()}


def _change_roles(call: ApiCall, fields: RoleChangeFields) -> Answer:
    change = change_from_sexp(parse(_bytes(fields.change)))
    book, by = call.roles, call.caller
    if isinstance(change, AcceptCredential):
        raise RefusedError("acs.not-permitted", "a credential is accepted by its certificate", hint="use roles/present")
    alone = acts_alone(book.engine, by, change)
    call.require(Right.CONNECT if alone else Right.ADMINISTER)
    if isinstance(change, Appoint | WithdrawAppointment) and not alone and change.by != book.founding.domain:
        raise RefusedError("acs.not-permitted", "nobody appoints in the name of another", hint="call with its key")
    return _outcome(book.change(change, by, call.now, fields.why, call.nonce))


def _certify(call: ApiCall, fields: CertifyFields) -> Answer:
    book, to = call.roles, Principal.parse(fields.to)
    record = book.engine.record(fields.record)
    own = record is not None and call.caller in (record.principal, record.appointer)
    call.require(Right.CONNECT if own else Right.ADMINISTER)
    reliance = RelyOnRecord(fields.record, to)
    book.engine.check(reliance)
    if record is None or to not in record.domains:
        record = book.change(reliance, call.caller, call.now, "certified", call.nonce).record or record
    if record is None:
        raise AssertionError("the engine has checked that there is a record")
    return {
        "record": record.as_dict(),
        "certificate": transport(certify(record, call.domain.signer).to_sexp()).decode(),
    }


def _present(call: ApiCall, fields: PresentFields) -> Answer:
    certificate = read_role_certificate(parse(_bytes(fields.certificate)))
    holder = certificate.holder if isinstance(certificate, AppointmentCertificate) else certificate.principal
    book = call.roles
    call.require(Right.CONNECT if holder == call.caller else Right.ADMINISTER)
    return _outcome(book.change(accepted(certificate, call.now), call.caller, call.now, "presented", call.nonce))


def _ended(call: ApiCall, fields: EndedFields) -> Answer:
    book, issuer = call.roles, call.caller
    if issuer == book.founding.domain or issuer not in book.engine.names.values():
        raise RefusedError("acs.not-permitted", f"{issuer.short} is not a domain that the role policy names")
    new = [one for one in dict.fromkeys(fields.records) if not book.engine.revoked(issuer, one)]
    if new:
        dropped = [DropCredential(issuer, one) for one in new]
        book.change_all(dropped, issuer, call.now, "notice of the issuer", call.nonce)
    return {"records": len(new)}


def _outcome(outcome: RoleOutcome) -> Answer:
    return {
        "record": None if outcome.record is None else outcome.record.as_dict(),
        "ended": [{**one.record.as_dict(), "reason": one.reason} for one in outcome.ended],
        "notices": [{"domain": str(domain), "record": record} for domain, record in outcome.notices],
    }


def _changes(call: ApiCall, fields: ChangesFields) -> Answer:
    call.require(Right.AUDIT)
    found = islice(call.domain.log(fields.after + 1), fields.most)
    return {"changes": [_change(one) for one in found], "last": call.domain.head.number}


def _changed(changes: tuple[RecordedChange, ...]) -> Answer:
    return {"changes": [_change(one) for one in changes]}


def _change(one: RecordedChange) -> Answer:
    change = one.change
    data: Answer = {
        "number": one.number,
        "kind": change.change.HEAD.decode(),
        "by": str(change.by),
        "time": change.time.isoformat(),
        "why": change.why,
    }
    match change.change:
        case AddMember(principal, kind, name):
            data |= {"member": str(principal), "member_kind": str(kind), "name": name}
        case RemoveMember(principal):
            data["member"] = str(principal)
        case RecordIssued(bag):
            verified = bag.verify()
            data |= certificate_data(verified.certificates[0]) | {
                "certificates": transport(verified.to_sexp()).decode()
            }
        case RegisterCertificates(bag):
            data["registered"] = [certificate_data(certificate) for certificate in bag.verify()]
        case RevokeIssued(ids):
            data["revoked"] = list(ids)
    return data


def certificate_data(certificate: Certificate) -> Answer:
    """Return a certificate as plain data."""
    statement = certificate.statement
    ends, starts = statement.validity.ends, statement.validity.starts
    data: Answer = {
        "id": certificate.id,
        "issuer": str(statement.issuer),
        "subject": describe_subject(statement.subject, None, full=True),
        "not_before": None if starts is None else starts.isoformat(),
        "not_after": None if ends is None else ends.isoformat(),
    }
    if isinstance(statement, Authorisation):
        data |= {"propagate": statement.propagate, "grants": describe_tag(statement.tag)}
    return data


def _subject(text: str) -> Subject:
    return read_subject(parse(_bytes(text))) if text.lstrip().startswith(("(", "{")) else Principal.parse(text)


def _network(text: str) -> NetworkName:
    owner, slash, name = text.partition("/")
    if not slash:
        raise MalformedError("name.malformed", f"`{text[:80]}` is not a network", hint="write `OWNER/NAME`")
    return NetworkName(Principal.parse(owner), name)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# ----------------------------------------------------------------------------------------------------------------------
# The list of operations.


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation: its path, its name and summary for people, its fields, and the function that answers it."""

    path: str
    name: str
    summary: str
    fields: type[Struct]
    run: Callable[[ApiCall, Any], Answer]
    changes: bool = False


OPERATIONS: Final = tuple(
    ApiOperation(f"/v1/{path}", name, summary, fields, run, changes)
    for path, name, summary, fields, run, changes in (
        ("members/list", "listMembers", "List the members", ListFields, _list_members, False),
        ("members/add", "addMember", "Add a member", AddMemberFields, _add_member, True),
        ("members/remove", "removeMember", "Remove a member", RemoveMemberFields, _remove_member, True),
        ("certificates/list", "listCertificates", "List the certificates", ListFields, _list_certificates, False),
        ("certificates/issue", "issueCertificate", "Issue a certificate", IssueFields, _issue, True),
        ("certificates/revoke", "revokeCertificates", "Revoke certificates", RevokeFields, _revoke, True),
        ("certificates/register", "registerCertificates", "Register certificates", RegisterFields, _register, True),
        ("holders", "listHolders", "List who holds which right on a type", HolderFields, _holders, False),
        ("complete", "completeChain", "Complete a chain of certificates", CompleteFields, _complete, False),
        ("statements/list", "listStatements", "List the last validity statements", ListFields, _statements, False),
        ("statements/answer", "answerQuestion", "Answer a one-time question", AnswerFields, _answer, False),
        ("roles/change", "changeRoles", "Change roles", RoleChangeFields, _change_roles, True),
        # A caller that lost this answer asks again: it is a certificate, and the same.
        ("roles/certify", "certifyRole", "Certify a role or an appointment", CertifyFields, _certify, False),
        ("roles/present", "presentRole", "Present another domain's certificate", PresentFields, _present, True),
        ("roles/ended", "endRecords", "Say that records have ended", EndedFields, _ended, True),
        ("changes", "listChanges", "List the changes", ChangesFields, _changes, False),
    )
)


def credentials_of(answer: Mapping[str, object]) -> Credentials:
    """Return the certificates of an answer, verified. Raises as `read_credentials` and `verify`."""
    return read_credentials(_bytes(str(answer.get("certificates", "")))).verify()
