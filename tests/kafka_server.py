"""The one Kafka server of a run, which several test processes share: the first that needs it starts and ends it."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import IO

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.jars import fetched_jars

from penstock.testing.kafka import KafkaServer

#: who can log in, with which password
USERS = {name: f"secret-of-{name}" for name in ("ann", "ben", "eve")}


@dataclass(frozen=True)
class RunningKafka:
    """Where the server is: for clients that may do everything, for those that log in, and for those that use TLS."""

    address: str
    sasl_address: str
    tls_address: str
    #: the certificate of the server
    certificate: str

    def tls_config(self, folder: Path) -> Path:
        """Write the file with the settings of a client with TLS."""
        path = folder / "tls.conf"
        path.write_text(f"security.protocol=SSL\nssl.ca.location={self.certificate}\n")
        path.chmod(0o600)
        return path


@contextmanager
def shared_server(folder: Path) -> Iterator[RunningKafka]:
    """Start a server, or use the one that another process with this folder has started."""
    found = folder / "kafka.json"
    with (folder / "kafka.users").open("w") as users, (folder / "kafka.start").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if found.exists():
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield RunningKafka(**json.loads(found.read_text()))
            return
        certificate, keystore = _new_certificate(folder)
        with KafkaServer(fetched_jars("kafka"), users=USERS, keystore=keystore) as server:
            running = RunningKafka(server.address, server.sasl_address, server.tls_address, str(certificate))
            found.write_text(json.dumps(asdict(running)))
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield running
            _wait_for_others(users)
            found.unlink()


def _new_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for this machine, and the keystore of its server; return both paths."""
    # Kafka reads keys of RSA and EC.
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kafka")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    paths = folder / "kafka.pem", folder / "kafka.keystore"
    paths[0].write_bytes(certificate)
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate)
    return paths


def _wait_for_others(users: IO[str]) -> None:
    fcntl.flock(users, fcntl.LOCK_EX)
