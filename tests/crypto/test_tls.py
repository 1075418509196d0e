"""TLS 1.3 alone, with a certificate that is fresh, shown, and whose key stays in memory."""

import itertools
import secrets
import ssl
import tempfile
from pathlib import Path

import pytest

from penstock.crypto.tls import (
    ServerCertificate,
    client_context,
    fingerprint,
    new_certificate,
    peer_fingerprint,
    server_context,
)
from penstock.errors import FailedError, MalformedError


def shake(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Bring two ends together in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(down, up)
    right = server.wrap_bio(up, down, server_side=True)
    waiting = [left, right]
    for end in itertools.islice(itertools.cycle((left, right)), 12):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        if end in waiting:
            waiting.remove(end)
    assert not waiting
    return left, right


def test_the_client_sees_the_certificate_that_the_server_has() -> None:
    certificate = new_certificate(secrets.token_bytes)
    client, server = shake(client_context(), server_context(certificate))
    assert client.version() == server.version() == "TLSv1.3"
    assert peer_fingerprint(client) == certificate.fingerprint == fingerprint(certificate.certificate)
    assert len(certificate.fingerprint) == 32


def test_every_start_has_another_certificate_and_the_randomness_decides_which() -> None:
    one, other = new_certificate(secrets.token_bytes), new_certificate(secrets.token_bytes)
    assert one.fingerprint != other.fingerprint
    assert new_certificate(bytes) == new_certificate(bytes)


@pytest.mark.parametrize("old", [ssl.TLSVersion.TLSv1_2])
def test_older_versions_are_refused(old: ssl.TLSVersion) -> None:
    server = server_context(new_certificate(secrets.token_bytes))
    client = client_context()
    client.minimum_version = client.maximum_version = old
    with pytest.raises(ssl.SSLError):
        shake(client, server)


def test_no_session_is_resumed() -> None:
    client, server = shake(client_context(), server_context(new_certificate(secrets.token_bytes)))
    server.write(b"x")
    assert client.read(1) == b"x"
    assert client.session is None or not client.session.has_ticket


def test_a_client_that_was_shown_no_certificate_knows_it() -> None:
    client, server = shake(client_context(), server_context(new_certificate(secrets.token_bytes)))
    assert peer_fingerprint(client)
    with pytest.raises(MalformedError) as caught:
        peer_fingerprint(server)  # clients have none
    assert caught.value.code == "tls.no-certificate"


def test_the_key_shows_nowhere() -> None:
    seed = b"\x07" * 32
    certificate = new_certificate(lambda size: seed[:size])
    assert "PRIVATE" not in repr(certificate)
    assert certificate.private_key.decode() not in repr(certificate)
    assert seed.hex() not in repr(certificate)


def test_the_key_does_not_touch_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def watched(self: ssl.SSLContext, *paths: str) -> None:
        opened.extend(paths)
        load(self, *paths)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    server_context(new_certificate(secrets.token_bytes))
    assert len(opened) == 2
    assert all(path.startswith("/dev/fd/") for path in opened)
    assert list(tmp_path.iterdir()) == []


def test_pipes_are_closed_again() -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        server_context(new_certificate(secrets.token_bytes))
    with pytest.raises(FailedError) as caught:
        server_context(ServerCertificate(b"no certificate", bytes(32), b"no key"))
    assert caught.value.code == "tls.context"
    assert len(list(Path("/dev/fd").iterdir())) == before
