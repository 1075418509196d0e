"""A real Kafka server for tests: one node in KRaft mode, on free loopback ports, ended by its process id.

    with KafkaServer(jars) as server:
        producer = Producer({"bootstrap.servers": server.address})

`jars` is the folder that `tools/jars.py kafka` prints. Clients of `address` may do everything. Clients of
`sasl_address` log in as one of `users`, and then may do what access control lists allow them. Clients of `tls_address`
use TLS, and may do everything: `keystore` is a PEM file with the server's private key (RSA or EC) and its certificate.
A server that was stopped or killed starts again on the same ports with the same data.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from logging import Logger
from pathlib import Path
from typing import Any, Final

from penstock.errors import FailedError
from penstock.testing.server_process import ServerProcess, find_java, free_ports

_HOST: Final = "127.0.0.1"
_PAUSE: Final = 0.05
#: any 16 bytes, as Kafka writes them
_CLUSTER: Final = "cGVuc3RvY2stdGVzdHMtMQ"
#: for a server that lives for a minute, and has little data
_JAVA: Final = (
    *("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL
sasl.enabled.mechanisms=PLAIN
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
# One node has one copy of everything, and few clients.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.dedupe.buffer.size=2097152
log.index.size.max.bytes=65536
listeners={listeners}
controller.quorum.voters=1@{controller}
log.dirs={data}
listener.name.sasl.plain.sasl.jaas.config={plain} required{users};
"""
_TLS: Final = """\
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={keystore}
"""
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


class KafkaServer(ServerProcess):
    """One Kafka server; a context manager that starts it, ends it, and removes its data.

    Raises `FailedError`: `testing.no-java`, `testing.kafka-not-ready`.
    """

    def __init__(
        self,
        jars: Path,
        *,
        users: Mapping[str, str] | None = None,
        keystore: Path | None = None,
        ready_within: float = 120.0,
    ) -> None:
        folder = tempfile.TemporaryDirectory(prefix="penstock-kafka-", ignore_cleanup_errors=True)
        super().__init__(folder, ready_within)
        self._jars = jars
        self._users = dict(users or {})
        self._keystore = keystore
        self._port, self._sasl_port, self._tls_port, self._controller = free_ports(4)  # also for a second start

    @property
    def address(self) -> str:
        """Return where clients connect that may do everything."""
        return f"{_HOST}:{self._port}"

    @property
    def sasl_address(self) -> str:
        """Return where clients connect that log in with a name and a password (SASL PLAIN)."""
        return f"{_HOST}:{self._sasl_port}"

    @property
    def tls_address(self) -> str:
        """Return where clients connect with TLS, if there is a keystore."""
        return f"{_HOST}:{self._tls_port}"

    def _prepare(self) -> tuple[list[str], Mapping[str, Any]]:
        java = find_java()
        data, settings = self._folder / "data", self._folder / "server.properties"
        if not settings.exists():
            listeners = {"PLAINTEXT": self._port, "SASL": self._sasl_port, "CONTROLLER": self._controller}
            if self._keystore is not None:
                listeners["TLS"] = self._tls_port
            users = "".join(f' user_{name}="{password}"' for name, password in self._users.items())
            text = _SETTINGS.format(
                listeners=",".join(f"{name}://{_HOST}:{port}" for name, port in listeners.items()),
                controller=f"{_HOST}:{self._controller}",
                data=data,
                plain=_PLAIN,
                users=users,
            )
            tls = "" if self._keystore is None else _TLS.format(keystore=self._keystore)
            settings.write_text(text + tls, "utf-8")
        if not data.exists():
            self._format(java, settings, data)
        return [java, *_JAVA, "-cp", f"{self._jars}/*", "kafka.Kafka", str(settings)], {}

    def _format(self, java: str, settings: Path, data: Path) -> None:
        # A formatted folder has neither ports nor paths in it, so all servers can begin with a copy of one.
        formatted = self._jars.with_name(f"{self._jars.name}-formatted")
        if formatted.is_dir():
            shutil.copytree(formatted, data)
            return
        arguments = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings))
        command = [java, *_JAVA, "-cp", f"{self._jars}/*", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # made here
        if done.returncode:
            raise _not_ready(done.stdout + done.stderr, done.returncode)
        with tempfile.TemporaryDirectory(dir=formatted.parent) as part:
            shutil.copytree(data, Path(part) / "data")
            if not formatted.exists():
                (Path(part) / "data").rename(formatted)

    def _wait(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415  # an extra
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415  # an extra

        unheard = Logger("kafka")  # noqa: LOG001  # it logs each connection that is refused
        unheard.disabled = True
        client = AdminClient(
            {"bootstrap.servers": self.address, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50},
            logger=unheard,
        )
        while time.monotonic() < deadline and process.poll() is None:
            try:
                client.list_topics(timeout=1)
            except KafkaException:
                time.sleep(_PAUSE)
            else:
                return
        raise _not_ready(self.log, process.poll())


def _not_ready(said: str, status: int | None) -> FailedError:
    return FailedError(
        "testing.kafka-not-ready", "the Kafka server did not get ready", hint=said[-2000:], status=status
    )
