"""The service: who may call what, what it answers, and what it does by itself."""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.apps.acs.kit import ADMIN, COURT, Desk, code_of
from tests.guard.london import CCS, MALLORY, MET, PITO, SMITH, TO_BILLING, V8516, numberplate

from penstock.apps.acs.operations import OPERATIONS, credentials_of
from penstock.apps.http.server import Bounds, HttpRequest, HttpResponse, HttpService
from penstock.codec.sexp import transport
from penstock.crypto import SigningKey
from penstock.errors import FailedError
from penstock.roles.credentials import AppointmentCertificate
from penstock.roles.engine import Appoint, SetFact
from penstock.store.ledgers.urls import open_store
from penstock.testing.postgres import PostgresServer
from penstock.trust.capabilities import Right, network_tag
from penstock.trust.credentials import Credentials
from penstock.trust.signed import sign_value
from penstock.trust.statements import (
    OneTimeAnswer,
    OneTimeQuestion,
    OnlineKind,
    OnlineTerms,
    read_validity_statement,
)
from penstock.trust.tags import to_sexp

TYPE = str(V8516.event_type.name)
RIGHTS = transport(to_sexp(network_tag(PITO.principal, "pito", [Right.ADMINISTER]))).decode()
TAG = transport(to_sexp(numberplate(Right.SUBSCRIBE))).decode()
BADGE = AppointmentCertificate(COURT.principal, "1", "badge", SMITH.principal, COURT.principal)
#: fields with which each operation works
FIELDS: dict[str, dict[str, object]] = {
    "/v1/members/list": {},
    "/v1/members/add": {"principal": str(SMITH.principal), "name": "smith"},
    "/v1/members/remove": {"principal": str(MET.principal)},
    "/v1/certificates/list": {},
    "/v1/certificates/issue": {"to": str(SMITH.principal), "tag": TAG},
    "/v1/certificates/revoke": {},
    "/v1/certificates/register": {"certificates": transport(Credentials.of(TO_BILLING).to_sexp()).decode()},
    "/v1/holders": {"type": TYPE},
    "/v1/complete": {"right": "subscribe", "type": TYPE, "principal": str(SMITH.principal)},
    "/v1/statements/list": {},
    "/v1/roles/change": {"change": transport(SetFact("open", True).to_sexp()).decode()},
    "/v1/roles/certify": {"record": "1", "to": str(CCS.principal)},
    "/v1/roles/present": {"certificate": transport(sign_value(BADGE, COURT).to_sexp()).decode()},
    "/v1/roles/ended": {"records": ["7"]},
    "/v1/changes": {},
}
#: what members may do too
OPEN = ("/v1/statements/list", "/v1/statements/answer")


def desk() -> Desk:
    """Return a service with a member, and with a certificate for SMITH."""
    made = Desk()
    made.call(ADMIN, "members/add", principal=str(MET.principal), name="met")
    made.call(ADMIN, "certificates/issue", to=str(SMITH.principal), tag=TAG)
    made.book.change(Appoint("badge", SMITH.principal, PITO.principal), PITO.principal, made.now)
    return made


def fields_of(made: Desk, path: str) -> dict[str, object]:
    certificate = next(iter(made.domain.state.issued))
    match path:
        case "/v1/certificates/revoke":
            return {"certificates": [certificate]}
        case "/v1/statements/answer":
            return {"question": question(certificate, ADMIN)}
    return FIELDS[path]


def question(certificate: str, verifier: SigningKey) -> str:
    asked = OneTimeQuestion(PITO.principal, certificate, verifier.principal, bytes(16))
    return transport(asked.to_sexp()).decode()


@pytest.mark.parametrize("path", [one.path for one in OPERATIONS])
def test_each_operation_is_authorised(path: str) -> None:
    made = desk()
    fields, name = fields_of(made, path), path.removeprefix("/v1/")
    head = made.domain.head
    # A stranger may do nothing, and a member nothing that is not its own.
    for caller in (MALLORY,) if path in OPEN else (MALLORY, MET):
        assert made.refused(caller, name, **fields) == (403, "acs.not-permitted")
    assert made.domain.head == head
    # Only the domain that issued a record can say that it has ended.
    assert made.call(COURT if path == "/v1/roles/ended" else ADMIN, name, **fields)


def test_a_member_asks_for_its_own_chain() -> None:
    made = desk()
    made.call(ADMIN, "members/add", principal=str(SMITH.principal), name="smith")
    answer = made.call(SMITH, "complete", right="subscribe", type=TYPE.partition("@")[0])
    [certificate] = credentials_of(answer)
    assert certificate.statement.subject == SMITH.principal
    assert made.refused(SMITH, "complete", right="publish", type=TYPE) == (404, "acs.no-chain")
    network = f"{PITO.principal}/pito"
    assert len(credentials_of(made.call(SMITH, "complete", right="connect", network=network))) == 1


def test_the_service_answers_for_what_it_issued() -> None:
    made = desk()
    test = OnlineTerms(OnlineKind.CRL, PITO.principal).to_test().body
    active = OnlineTerms(OnlineKind.ACTIVE, PITO.principal, pause=timedelta(minutes=1)).to_test().body
    fields = {"to": str(CCS.principal), "tag": TAG, "online": [transport(one).decode() for one in (test, active)]}
    [change] = made.call(ADMIN, "certificates/issue", **fields)["changes"]
    assert made.service.state_validity() == 1
    assert made.service.state_validity() == 0
    kinds = [
        read_validity_statement(one.encode()).verify().value.HEAD
        for one in made.call(MET, "statements/list")["statements"]
    ]
    assert kinds == [b"crl", b"heartbeat"]
    for revoked in (False, True):
        answer = made.call(MET, "statements/answer", question=question(change["id"], MET))
        said = read_validity_statement(answer["statement"].encode()).verify().value
        assert isinstance(said, OneTimeAnswer)
        assert said.revoked is revoked
        made.call(ADMIN, "certificates/revoke", certificates=[change["id"]])
    assert made.refused(MET, "statements/answer", question=question(change["id"], SMITH))[0] == 403
    for online in ("(online rubbish)", "(", "(online crl)"):
        assert made.refused(ADMIN, "certificates/issue", **{**fields, "online": [online]})[0] == 400


def test_holders_and_revocation() -> None:
    made = desk()
    found = made.call(ADMIN, "holders", type=TYPE, rights=["subscribe"])
    assert found["complete"] is True
    [_owner, smith] = found["holders"]
    assert smith["holder"] == str(SMITH.principal)
    assert smith["restriction"] == {"attributes": "*"}
    [link] = smith["chain"]
    made.call(ADMIN, "certificates/revoke", certificates=[link["id"]], why="over")
    assert len(made.call(ADMIN, "holders", type=TYPE, rights=["subscribe"])["holders"]) == 1
    last = made.call(ADMIN, "changes")["changes"][-1]
    assert (last["kind"], last["by"], last["why"], last["revoked"]) == (
        "revoke",
        str(ADMIN.principal),
        "over",
        [link["id"]],
    )


def test_a_request_that_is_sent_again_has_no_effect() -> None:
    made = desk()
    request = made.request(ADMIN, "members/add", {"principal": str(SMITH.principal), "name": "smith"})
    assert made.send(request).status == 200
    assert code_of(made.send(request)) == (409, "acs.repeated")
    # Another service on the same store refuses it too.
    assert code_of(Desk(made.ledger).send(request)) == (409, "acs.repeated")
    # So do reads, and requests that were refused: what has happened since does not count.
    question = made.request(ADMIN, "members/list", {})
    assert made.send(question).status == 200
    other = made.request(ADMIN, "members/add", {"principal": str(CCS.principal), "name": "smith"})
    assert code_of(made.send(other)) == (409, "acs.member-exists")
    stranger = made.request(CCS, "members/remove", {"principal": str(SMITH.principal)})
    assert code_of(made.send(stranger)) == (403, "acs.not-permitted")
    made.call(ADMIN, "members/remove", principal=str(SMITH.principal))
    made.call(ADMIN, "certificates/issue", to=str(CCS.principal), tag=RIGHTS)
    for desk_ in (made, Desk(made.ledger)):
        for one in (question, other, stranger):
            assert code_of(desk_.send(one)) == (409, "acs.answered")


@pytest.mark.parametrize("path", ["members/list", "members/add"])
def test_copies_that_arrive_together_are_answered_once(path: str) -> None:
    made = desk()
    fields = {"principal": str(SMITH.principal), "name": "smith"} if path == "members/add" else {}
    request = made.request(ADMIN, path, fields)

    async def copies() -> list[HttpResponse]:
        return [await one for one in [asyncio.ensure_future(made.service._answer(request)) for _ in range(3)]]

    first, *others = asyncio.run(copies())
    assert first.status == 200
    code = "acs.repeated" if path == "members/add" else "acs.answered"
    assert [code_of(one) for one in others] == [(409, code)] * 2


def test_a_request_that_was_changed_on_its_way_takes_no_nonce() -> None:
    made = desk()
    request = made.request(ADMIN, "members/list", {})
    spoilt = HttpRequest(request.method, request.path, request.headers, request.body + b" ")
    assert code_of(made.send(spoilt)) == (401, "acs.digest")
    assert made.send(request).status == 200


def test_a_request_that_failed_can_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = desk()
    request = made.request(ADMIN, "members/list", {})
    with monkeypatch.context() as patched:
        patched.setattr(made.domain, "refresh", _fail)
        assert made.send(request).status == 503
    assert made.send(request).status == 200


def _fail() -> None:
    raise FailedError("store.failed", "the disk is full")


def test_a_request_is_not_applied_again_after_the_ledger_forgot_it_or_never_had_it() -> None:
    made = desk()
    smith = {"principal": str(SMITH.principal), "name": "smith"}
    added = made.request(ADMIN, "members/add", smith)
    assert made.send(added).status == 200
    # The certificate is there already: nothing changes.
    issued = made.request(ADMIN, "certificates/issue", {"to": str(SMITH.principal), "tag": TAG})
    assert json.loads(made.send(issued).body) == {"changes": []}
    ahead = Desk(made.ledger)
    ahead.later(minutes=20)
    ahead.call(ADMIN, "members/remove", principal=str(SMITH.principal))
    assert [code_of(made.send(one)) for one in (added, issued)] == [(409, "acs.repeated")] * 2
    assert SMITH.principal not in made.domain.refresh().members


def test_a_body_that_was_changed_is_refused() -> None:
    made = desk()
    request = made.request(ADMIN, "members/add", {"principal": str(SMITH.principal), "name": "smith"})
    other = HttpRequest(request.method, request.path, request.headers, request.body.replace(b"smith", b"brown"))
    assert code_of(made.send(other)) == (401, "acs.digest")
    assert SMITH.principal not in made.domain.state.members


def test_what_is_not_signed_is_refused_before_the_body() -> None:
    made = desk()
    bare = {b"content-type": b"application/json"}
    assert code_of(made.send(HttpRequest(b"POST", b"/v1/members/list", bare, b"{}"))) == (401, "acs.unsigned")
    old = made.request(ADMIN, "members/list", {})
    made.later(seconds=400)
    assert code_of(made.send(old)) == (401, "acs.untimely")
    assert made.send(HttpRequest(b"POST", b"/v1/nothing", bare)).status == 404
    assert made.send(HttpRequest(b"GET", b"/v1/members/list", bare)).status == 405
    assert made.send(HttpRequest(b"POST", b"/health", bare)).status == 405
    assert made.send(HttpRequest(b"POST", b"/v1/members/list", {})).status == 400


def test_pages_need_no_signature() -> None:
    made = desk()
    health = made.send(HttpRequest(b"GET", b"/health", {}))
    assert json.loads(health.body) == {"status": "ok", "domain": str(PITO.principal), "name": "pito"}
    document = json.loads(made.send(HttpRequest(b"GET", b"/openapi.json", {})).body)
    assert {one.path for one in OPERATIONS} < set(document["paths"])


INJECTIONS = [
    "'; DROP TABLE penstock_changes; --",
    '" OR 1=1 --',
    "\\'; DELETE FROM penstock_ledgers; --",
    "x' UNION SELECT data FROM penstock_snapshots --",
    "$$; DROP TABLE penstock_requests; $$",
    "%s %d {0} ${jndi:ldap://x}",
    "a\u2028b'",
]


def test_sql_in_fields_is_text_in_sqlite(tmp_path: Path) -> None:
    sql_is_text(f"sqlite:{tmp_path}/acs.db")


def test_sql_in_fields_is_text_in_postgresql(postgres: PostgresServer) -> None:
    sql_is_text(postgres.url(postgres.new_database()))


def sql_is_text(url: str) -> None:
    with open_store(url, create=True) as store:
        made = Desk(store.ledger("domain/pito"))
        for number, text in enumerate(INJECTIONS):
            name = text if text.isprintable() else "plain"
            member = str(SigningKey(bytes(31) + bytes((number,))).principal)
            made.call(ADMIN, "members/add", principal=member, name=name, why=name)
            assert made.call(ADMIN, "members/list")["members"][-1]["name"] == name
            for path, fields in (
                ("members/add", {"principal": text, "name": "x"}),
                ("certificates/revoke", {"certificates": [text]}),
                ("holders", {"type": text}),
                ("certificates/issue", {"to": text, "tag": text}),
            ):
                status, _ = made.refused(ADMIN, path, **fields)
                assert status in (400, 404)
        assert made.domain.verify() == made.domain.head
        assert [one["why"] for one in made.call(ADMIN, "changes")["changes"] if one["why"] in INJECTIONS]


def tampered(request: HttpRequest) -> Iterator[bytes]:
    """Yield heads that try to say two things, or to write lines of their own into the answer."""
    lines = [name + b": " + value for name, value in request.headers.items()]
    again = [b"signature-input", b"signature", b"content-digest", b"penstock-domain", b"content-length"]
    for name in again:
        yield _head(request.path, [*lines, name + b": " + request.headers.get(name, b"2")])
        yield _head(request.path, [*lines, name.title() + b": x"])
    for rest in (b"\r\nSet-Cookie: x=1", b"\nSet-Cookie: x=1", b"\rSet-Cookie: x=1", b"\x00", b"\r\n Set-Cookie: x=1"):
        if not rest.startswith(b"\r\nS"):
            yield _head(request.path, [*lines[:-1], lines[-1] + rest])
        yield _head(request.path + rest, lines)
        yield _head(request.path, [*lines, b"X" + rest + b": 1"])
    for path in (b"/v1/members/list%0d%0aSet-Cookie:%20x=1", b"/v1/members/list?x=\xe2\x80\xa8", b"//v1/members/list"):
        yield _head(path, lines)


def _head(path: bytes, lines: list[bytes]) -> bytes:
    return b"\r\n".join([b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: 2", *lines, b"", b"{}"])


def test_headers_cannot_be_injected() -> None:
    made = desk()
    request = made.request(ADMIN, "members/list", {})
    lines = [name + b": " + value for name, value in request.headers.items()]

    async def run() -> None:
        bounds = Bounds(8_192, 1 << 18, 10_000, 10_000, 16)
        http = await HttpService(made.service.answer, bounds, "acs.listen", made.service.admit).start("127.0.0.1", 0)
        try:
            for head in tampered(request):
                answer = await _exchange(http.port, head)
                assert int(answer.split()[1]) in (400, 401, 404), head
                assert b"set-cookie" not in answer.partition(b"\r\n\r\n")[0].lower()
            # None of them has used up the nonce.
            assert (await _exchange(http.port, _head(request.path, lines))).startswith(b"HTTP/1.1 200 ")
        finally:
            await http.stop()

    asyncio.run(run())


async def _exchange(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await reader.readuntil(b"}")
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize("text", ["a\r\nSet-Cookie: x=1", "a\nb", "\x00", "\x1b[2J"])
def test_lines_in_fields_reach_neither_headers_nor_the_log(text: str) -> None:
    made = desk()
    assert made.refused(ADMIN, "members/add", principal=str(SMITH.principal), name=text)[0] == 400
    answer = made.send(made.request(ADMIN, "members/add", {"principal": text, "name": "x"}))
    assert answer.status == 400
    assert answer.headers == b""
    assert made.refused(ADMIN, "members/add", principal=str(SMITH.principal), name="x", why=text)[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"name": 1}',
        b'{"unknown": 1}',
        b'"' + b"x" * 1000,
        b"[" * 5000,
        b"\xff\xfe",
        b'{"name": "\\ud800", "principal": "x"}',
    ],
)
def test_bodies_that_are_not_the_fields_are_refused(body: bytes) -> None:
    made = desk()
    assert code_of(made.send(made.request(ADMIN, "members/add", body)))[0] == 400


def test_certificates_of_administrators_follow_the_file() -> None:
    made = desk()
    made.service.begin((CCS.principal,), Credentials())
    assert made.refused(ADMIN, "members/list") == (403, "acs.not-permitted")
    assert made.call(CCS, "members/list")
    head = made.domain.head
    made.service.begin((CCS.principal,), Credentials())
    assert made.domain.head == head


def test_short_lived_certificates_are_renewed_by_the_service() -> None:
    made = desk()
    made.call(ADMIN, "certificates/issue", to=str(CCS.principal), tag=TAG, lifetime=3600)
    assert made.service.renew() == 0
    made.later(minutes=45)
    assert made.service.renew() == 1
    assert made.service.renew() == 0
    made.later(days=6)
    # Those of administrators too.
    assert made.service.renew() >= 1
    made.later(days=3)
    assert made.call(ADMIN, "members/list")
