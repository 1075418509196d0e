"""Samples and certificates: one written form, one signature, and nothing else is read."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authority.components.exchange.certificates import (
    ComponentCertificate,
    ComponentCertificates,
    administrator_certificate,
    certificate_bytes,
)
from penstock.authority.components.exchange.samples import (
    CONTENTS,
    SILENT,
    AppliedTime,
    AttributeQuery,
    BaseTime,
    ComponentSample,
    Configuration,
    ConfigurationLease,
    DecisionReply,
    DecisionRequest,
    Departure,
    DomainCheckpoint,
    FieldValue,
    InformationField,
    InformationReply,
    InformationRequest,
    JoinRequest,
    LeaseReturned,
    NewTopicKeys,
    PolicyApplied,
    PolicyText,
    Reconfiguration,
    ReconfigurationPlan,
    RequiredNames,
    RoleConfiguration,
    SampleContent,
    SampleDuty,
    SampleRevision,
    SpecifiedEntry,
    SpecifiedPolicy,
    Withdrawal,
    read_sample,
    sample_bytes,
)
from penstock.authority.components.exchange.topics import ComponentKind
from penstock.authority.components.exchange.topics_lists import TopicsList
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion
from penstock.crypto import SigningKey
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.trust.validity import Validity

PAP, PEP, OTHER = (SigningKey(bytes([number]) * 32) for number in range(1, 4))
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
LIST: Final = TopicsList.of(["APEP_1", "QPEP_1", "DREQ_1"], ["RPEP_1", "DREP_1"])
QUESTION: Final = AccessQuestion.of(("user", "alice"), "read", ("document", "report-7"))


def certificate(*, issuer: SigningKey = PAP, **changed: Any) -> bytes:
    values: dict[str, Any] = {
        "domain": "bank",
        "id": "pep1",
        "key": PEP.public.raw,
        "kind": ComponentKind.PEP,
        "role": "ER",
        "arguments": (1,),
        "record": "3",
        "home": "bank",
        "topics": LIST,
        "since": 1,
        **changed,
    }
    return certificate_bytes(ComponentCertificate(issuer.principal, **values), issuer)


ROW: Final = RoleConfiguration("PEP", ("APEP_1", "DREQ_1"), ("RPEP_1", "DREP_1"), {"decision": "first"}, {"bank": 1})
VALUES: Final[tuple[FieldValue, ...]] = ("alice", True, 1, 1.0, None, ["a", 1])
EXAMPLES: Final[tuple[tuple[str, SampleContent], ...]] = (
    ("JOIN_1", JoinRequest(PEP.public.raw, "PEP", "ER(1)", (b"ce",), (b"ar",), bytes(32))),
    ("JOIN_1", JoinRequest(PEP.public.raw, "PEP", "ER(1)")),
    ("CONF_1", Configuration("bank", "pep1", 1, b"rc", {"policy": "a"}, {}, (PolicyText("p", "1", 1.5, b"<x/>"),))),
    ("CONF_1", Configuration("bank", "pep1", 1, b"rc", box_key=bytes(32), private=b"sealed", recorded=b"row")),
    ("CONF_1", Configuration("bank", "pep1", 1, refusal="role.denied", join=b"digest")),
    (
        "CONF_1",
        ReconfigurationPlan(
            2,
            7.5,
            {"ER(1)": ROW, "ER(2)": None},
            (b"(change)",),
            "why",
            SpecifiedEntry("p", "n", "psp1", 4, "bank-2"),
            rekey=True,
        ),
    ),
    (
        "RPEP_1",
        Reconfiguration(2, 7.5, {"ER(1)": ROW}, {"pep1": b"rc"}, ("pep1",), {"pep1": b"sealed"}, 2, 3, 5),
    ),
    ("RPDP_3", BaseTime(2, 8.25)),
    ("RPDP_3", Withdrawal({"pdp9": "12", "pdp1": "3"}, {"pdp9": SILENT}, {"pdp2": 4})),
    ("CONF_1", DomainCheckpoint(1, 2, 9, b"state")),
    ("RPLP_1", ConfigurationLease(2, 17, 8.25, recall=True)),
    ("APEP_1", LeaseReturned(17)),
    ("APEP_1", AppliedTime(2, 8.25)),
    ("SPOL_1", Departure()),
    ("QPDP_1", RequiredNames(("resource/owner",))),
    ("QPEP_1", RequiredNames()),
    ("DREQ_1", DecisionRequest.of(QUESTION)),
    ("DREP_1", DecisionReply("bank", "pep1", 7, QUESTION.digest, AnswerEffect.DENY, (SampleRevision("p", "1", 1.5),))),
    (
        "DREP_1",
        DecisionReply(
            "bank", "pep1", 7, QUESTION.digest, AnswerEffect.INDETERMINATE, (), "pdp.failed",
            (SampleDuty("log", (("a", "string", "v"),)),), (SampleDuty("tell"),),
        ),
    ),
    ("IREQ_1", InformationRequest((AttributeQuery("resource", "account", "7", ("owner", "balance")),))),
    (
        "IREP_1",
        InformationReply(
            "bank", "pdp1", 9,
            tuple(
                InformationField("resource", "account", "7", "owner", value, 2.5)
                for value in VALUES
            ),
        ),
    ),
    ("SPOL_1", SpecifiedPolicy("limits", "cedar", b"permit")),
    ("APOL_1", PolicyApplied("bank", "psp1", 3, "bank-7", 9.5)),
    ("APOL_1", NewTopicKeys("bank", "psp1", 3, b"sealed")),
)  # fmt: skip


REQUEST: Final = DecisionRequest.of(QUESTION)


def sample(topic: str = "DREQ_1", content: SampleContent = REQUEST, **changed: Any) -> ComponentSample:
    values: dict[str, Any] = {"domain": "bank", "id": "pep1", "number": 7, "time": 12.5, "configuration": 1, **changed}
    return ComponentSample(topic=topic, content=content, **values)


def written(of: ComponentSample) -> bytes:
    return sample_bytes(of, b"", PEP)


#: the body of each example in hexadecimal as it was first written: signatures are over these bytes
VECTORS: Final = Path(__file__).with_name("samples.txt").read_text().split()


def test_there_is_an_example_of_every_content() -> None:
    assert {type(content) for _, content in EXAMPLES} == {kind for kinds in CONTENTS.values() for kind in kinds}


@pytest.mark.parametrize(("example", "vector"), [*zip(EXAMPLES, VECTORS, strict=True)], ids=lambda one: str(one)[:24])
def test_a_sample_is_read_and_written_as_it_was(example: tuple[str, SampleContent], vector: str) -> None:
    found = read_sample(sample_bytes(sample(*example), b"rc", PEP))
    assert found.sample == sample(*example)
    assert found.certificate == b"rc"
    assert found.body.hex() == vector
    found.verify(PEP.public)
    with pytest.raises(RefusedError, match=r"key\.bad-signature"):
        found.verify(OTHER.public)


@pytest.mark.parametrize(("topic", "content"), EXAMPLES, ids=lambda one: str(one)[:24])
def test_a_content_belongs_to_its_topics(topic: str, content: SampleContent) -> None:
    for kind, contents in CONTENTS.items():
        if not isinstance(content, contents):
            with pytest.raises(MalformedError, match=r"component\.sample"):
                written(sample(f"{kind}_1", content))


@pytest.mark.parametrize("place", range(len(EXAMPLES)))
def test_a_field_too_many_or_another_form_is_refused(place: int) -> None:
    body = bytes.fromhex(VECTORS[place])
    head, content_at = body[:1], body.index(b"\xcb@)\x00\x00\x00\x00\x00\x00\x01") + 10
    assert head == b"\x97"
    for wrong in (
        b"\x98" + body[1:] + b"\xc0",
        body[:content_at] + bytes([body[content_at] + 1]) + body[content_at + 1 :] + b"\xc0",
        b"\xdc\x00\x07" + body[1:],
        body + b"\xc0",
        body[:-1],
    ):
        with pytest.raises(MalformedError):
            read_sample(b"\0\0" + wrong + PEP.sign(wrong))


@given(st.sampled_from(EXAMPLES), st.data())
def test_whatever_is_read_is_written_the_same(example: tuple[str, SampleContent], data: st.DataObject) -> None:
    whole = bytearray(sample_bytes(sample(*example), b"rc", PEP))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PenstockError):
        found = read_sample(bytes(whole))
        assert sample_bytes(found.sample, found.certificate, PEP)[:-64] == bytes(whole[:-64])


@given(st.binary(max_size=200))
def test_junk_is_malformed(junk: bytes) -> None:
    with pytest.raises(MalformedError):
        read_sample(junk)


@pytest.mark.parametrize(
    "wrong",
    [
        sample(domain="a/b"),
        sample(id=""),
        sample(time=float("nan")),
        sample(time=float("inf")),
        sample(time=1e12),
        sample(time=-1.0),
        sample(number=-1),
        sample(configuration=-1),
        sample("DREQ_0"),
        sample("JOIN_1", JoinRequest(b"short", "PEP", "ER(1)")),
        sample("RPEP_1", Reconfiguration(2, 7.5, part=2)),
        sample("RPEP_1", Reconfiguration(2, 7.5, part=0)),
        sample("CONF_1", DomainCheckpoint(1, 1_001, 9, b"")),
        sample("CONF_1", Configuration("bank", "pep1", 1)),
        sample("CONF_1", Configuration("bank", "pep1", 1, b"rc", since=float("inf"))),
        sample("RPEP_1", ConfigurationLease(2, 17, float("nan"))),
        sample("RPEP_1", ConfigurationLease(2, 17, float("inf"))),
        sample("CONF_1", Configuration("bank", "pep1", 1, b"rc", refusal="role.denied")),
        sample("CONF_1", Configuration("bank", "pep1", 1, b"rc", budgets=(1.0, 1.0, 2.0))),
        sample("DREP_1", DecisionReply("bank", "pep1", 1, b"", AnswerEffect.INDETERMINATE)),
        sample("DREP_1", DecisionReply("bank", "pep1", 1, b"", AnswerEffect.PERMIT, status="pdp.failed")),
        sample("IREP_1", InformationReply("bank", "p", 1, (InformationField("", "", "", "", [float("inf")], 1.0),))),
        *(
            sample("DREP_1", DecisionReply("bank", "p", 1, b"", AnswerEffect.PERMIT, (SampleRevision("", "", time),)))
            for time in (float("nan"), float("inf"), 1e12, -1.0)
        ),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_are_refused(wrong: ComponentSample) -> None:
    with pytest.raises(MalformedError):
        written(wrong)
    body = msgspec.msgpack.encode(wrong, order="deterministic")
    with pytest.raises(MalformedError):
        read_sample(b"\0\0" + body + bytes(64))


def test_a_sample_that_would_not_be_read_is_not_signed() -> None:
    with pytest.raises(MalformedError, match=r"component\.sample"):
        written(sample("APEP_1", AppliedTime(2, 7)))


def test_a_sample_that_no_fabric_carries_is_refused() -> None:
    with pytest.raises(LimitError, match=r"component\.limit"):
        written(sample("SPOL_1", SpecifiedPolicy("p", "cedar", bytes(600_000))))


def test_a_request_says_the_question() -> None:
    assert DecisionRequest.of(QUESTION).asked == QUESTION


# ----------------------------------------------------------------------------------------------------------------------
# Certificates.


def verifier() -> ComponentCertificates:
    return ComponentCertificates("bank", frozenset({PAP.principal}))


def test_a_certificate_is_verified_once() -> None:
    data, checks = certificate(), verifier()
    assert checks.known(data) is None
    found = checks.verify(data, NOW)
    assert checks.known(data) is found
    assert checks.verify(data, NOW) is found
    assert (found.principal, found.role_name) == (PEP.principal, "ER(1)")
    assert found.may_write(next(iter(LIST.write)))
    assert not found.may_write(next(iter(LIST.read)))


def test_an_administrator_certifies_itself() -> None:
    found = verifier().verify(administrator_certificate(PAP, "bank", "pap1"), NOW)
    assert found.kind is ComponentKind.PAP
    assert found.may_write(next(iter(LIST.reading(next(iter(LIST.read)).kind)))) is (
        next(iter(LIST.read)).kind == "RPEP"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        certificate(domain="shop"),
        certificate(issuer=OTHER),
        certificate(validity=Validity.between(NOW + timedelta(1), None)),
        certificate(validity=Validity.between(None, NOW - timedelta(1))),
        certificate(kind=ComponentKind.PAP, role="AR", topics=TopicsList()),
        administrator_certificate(OTHER, "bank", "pap2"),
    ],
)
def test_certificates_of_others_are_refused(wrong: bytes) -> None:
    with pytest.raises(RefusedError, match=r"component\.certificate"):
        verifier().verify(wrong, NOW)


def test_a_certificate_beyond_table_2_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"component\.topics-list"):
        certificate(kind=ComponentKind.PDP)


@given(st.data())
def test_a_changed_certificate_is_refused(data: st.DataObject) -> None:
    whole = bytearray(certificate())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PenstockError):
        verifier().verify(bytes(whole), NOW)
