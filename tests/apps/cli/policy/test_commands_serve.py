"""`penstock pdp serve` as a process: callers, the log, XACML REST, bundles that change, and what ends in a refusal."""

import json
import re
import signal
import socket
import ssl
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from tests.apps.conftest import Shell
from tests.apps.node_kit import eventually
from tests.apps.pdp_kit import ASKED, EVALUATION, EVALUATIONS, TODO, Serving, serving
from tests.policy.kit import policy_text, rule

from penstock.apps.http.bundles import build
from penstock.policy.language.requests import ACTION_ID, ENVIRONMENT, RESOURCE_ID, SUBJECT_ID

GATEWAY = "what-the-gateway-shows"
YES, NO = policy_text(rule()), policy_text(rule(effect="Deny"))


def replace_file(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.rename(path)


def decides_by(pdp: Serving, revision: str) -> bool:
    return bool(pdp.send("GET", "/health").json["revision"] == revision)


def test_callers_and_the_log(tmp_path: Path) -> None:
    callers, log = tmp_path / "callers", tmp_path / "log"
    callers.write_text(f"# who\ngateway {GATEWAY}\nother another-token-that-is-long\n")
    with serving(TODO, "--tokens", str(callers), "--log", str(log)) as pdp:
        for wrong in ({}, {"Authorization": f"Bearer {GATEWAY}x"}, {"Authorization": f"Basic {GATEWAY}"}):
            refused = pdp.ask(EVALUATION, ASKED, **wrong)
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "decision" not in refused.json
        known = {"Authorization": f"Bearer {GATEWAY}", "X_Request_ID": "r-1"}
        hushed = {**ASKED, "context": {"secret": "hush"}}
        assert pdp.ask(EVALUATION, hushed, **known).json == {"decision": True}
        said = pdp.ask(EVALUATION, hushed, **known)
        assert said.json == {"decision": True}
        several = {**ASKED, "evaluations": [{}, {"action": {"name": "fly"}}]}
        both = pdp.ask(EVALUATIONS, several, **known)
        records = [json.loads(line) for line in log.read_text().splitlines()]
        assert [one["data"]["decision"] for one in records] == ["Permit", "Permit", "Permit", "Deny"]
        assert len({one["id"] for one in records}) == 4
        assert records[1]["id"] == f"{said.headers['x-decision-id']}-0"
        assert records[3]["id"] == f"{both.headers['x-decision-id']}-1"
        first = records[0]["data"]
        assert (first["caller"], first["request"], first["revision"]) == ("gateway", "r-1", pdp.revision)
        assert [one["data"]["because"] for one in records] == [["policy:urn:penstock:example:authzen"]] * 4
        assert all(type(one["data"]["took"]) is int and one["data"]["took"] >= 0 for one in records)
        assert not re.search(f"hush|{GATEWAY}", log.read_text())
        assert log.stat().st_mode & 0o077 == 0
        metrics = pdp.send("GET", "/metrics").body.decode()
        assert 'penstock_pdp_decisions_total{decision="Permit"} 3.0' in metrics
        assert "penstock_pdp_unauthorized_total 3.0" in metrics
        assert pdp.send("GET", "/health").json == {"status": "ok", "revision": pdp.revision}


def test_what_cannot_be_recorded_is_not_decided(tmp_path: Path) -> None:
    with serving(TODO, "--log", str(tmp_path)) as pdp:
        said = pdp.ask(EVALUATION, ASKED)
        assert (said.status, said.json["error"]["code"]) == (503, "log.write")
        health = pdp.send("GET", "/health")
        assert (health.status, health.json["status"]) == (503, "failing")


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with serving(TODO, "--tls-cert", str(chain), "--tls-key", str(key), tls=trusting) as pdp:
        assert pdp.decides(ASKED) is True
        found = pdp.send("GET", "/.well-known/authzen-configuration").json
        assert found["access_evaluation_endpoint"] == f"{pdp.url}{EVALUATION}"
        stranger = replace(pdp, tls=ssl.create_default_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            stranger.decides(ASKED)
        # Who does not speak TLS gets no answer.
        with socket.create_connection(("127.0.0.1", urlsplit(pdp.url).port or 0)) as plain:
            plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            plain.settimeout(20)
            assert b"HTTP/1.1" not in plain.recv(1024)
        assert pdp.decides(ASKED) is True


def test_xacml_rest_and_wrong_doors() -> None:
    known = [
        {"AttributeId": SUBJECT_ID, "Value": "alice"},
        {"AttributeId": "urn:penstock:authzen:subject-type", "Value": "user"},
    ]
    record = [
        {"AttributeId": "urn:penstock:authzen:resource-type", "Value": "record"},
        {"AttributeId": RESOURCE_ID, "Value": "record-1"},
        {"AttributeId": "status", "Value": "active"},
    ]
    asked = {
        "Request": {
            "AccessSubject": [{"Attribute": known}],
            "Resource": [{"Attribute": record}],
            "Action": [{"Attribute": [{"AttributeId": ACTION_ID, "Value": "read"}]}],
        }
    }
    with serving(TODO) as pdp:
        body = json.dumps(asked).encode()
        said = pdp.send("POST", "/authorize", body, Content_Type="application/xacml+json")
        assert said.json["Response"][0]["Decision"] == "Permit"
        as_xml = pdp.send("POST", "/authorize", body, Content_Type="application/xacml+json", Accept="application/xml")
        assert b"<Decision>Permit</Decision>" in as_xml.body
        nothing = b'<Request xmlns="urn:oasis:names:tc:xacml:3.0:core:schema:wd-17" ReturnPolicyIdList="false" '
        xml = nothing + f'CombinedDecision="false"><Attributes Category="{ENVIRONMENT}"/></Request>'.encode()
        denied = pdp.send("POST", "/authorize", xml, Content_Type="application/xacml+xml; version=3.0")
        assert (denied.status, denied.headers["content-type"]) == (200, "application/xacml+xml")
        assert b"<Decision>Deny</Decision>" in denied.body
        bomb = b'<!DOCTYPE a [<!ENTITY b "c">]><Request>&b;</Request>'
        for wrong in (b"", b"<", b"<a/>", bomb):
            assert pdp.send("POST", "/authorize", wrong, Content_Type="application/xml").status == 400
        assert pdp.send("POST", "/authorize", xml, Content_Type="text/plain").status == 415
        assert b"/authorize" in pdp.send("GET", "/").body
        for method, path, status, code in (
            ("GET", EVALUATION, 405, "http.method"),
            ("POST", "/health", 405, "http.method"),
            ("GET", "/etc/passwd", 404, "http.not-found"),
        ):
            refused = pdp.send(method, path)
            assert (refused.status, refused.json["error"]["code"]) == (status, code)
            assert refused.json["error"]["message"]


def test_bundles_change_under_load(tmp_path: Path) -> None:
    """No question fails, and none is answered by two revisions."""
    bundle, failures, seen = tmp_path / "policy.xml", [], set()
    bundle.write_bytes(YES)
    decided = {build({"policy.xml": data}, "policy.xml").revision: data == YES for data in (YES, NO)}
    several = {**ASKED, "evaluations": [{"context": {"n": n}} for n in range(50)]}
    stop = threading.Event()
    with serving(bundle, "--watch", "0.05") as pdp:

        def ask() -> None:
            while not stop.is_set():
                said = pdp.ask(EVALUATIONS, several)
                revision = said.headers["x-policy-revision"]
                if {one["decision"] for one in said.json["evaluations"]} != {decided[revision]}:
                    failures.append(said)
                seen.add(revision)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for data in (NO, YES, NO):
            replace_file(bundle, data)
            wanted = next(revision for revision, yes in decided.items() if yes == (data == YES))
            eventually(partial(decides_by, pdp, wanted))
        replace_file(bundle, b"<Policy")
        eventually(lambda: pdp.send("GET", "/health").json["status"] == "stale")
        assert pdp.decides(ASKED) is False
        replace_file(bundle, YES)
        pdp.process.send_signal(signal.SIGHUP)
        eventually(lambda: pdp.send("GET", "/health").json["status"] == "ok")
        assert pdp.decides(ASKED) is True
        stop.set()
        for thread in threads:
            thread.join()
    assert (failures, seen) == ([], set(decided))


def test_what_does_not_start(penstock: Shell) -> None:
    (penstock.folder / "yes.xml").write_bytes(YES)
    (penstock.folder / "short").write_text("me short\n")
    (penstock.folder / "empty").mkdir()
    for code, words in {
        "pdp.open": ("yes.xml", "--listen", "0.0.0.0:0"),
        "pdp.tokens": ("yes.xml", "--tokens", "short"),
        "pdp.bundle": ("empty",),
        "pdp.tls": ("yes.xml", "--tls-cert", "yes.xml", "--tls-key", "yes.xml"),
        "cli.usage": ("yes.xml", "--listen", "here"),
    }.items():
        done = penstock("pdp", "serve", *words)
        assert done.code == code
        assert "me short" not in done.err
