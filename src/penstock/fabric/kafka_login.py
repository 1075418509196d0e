"""Log in to Kafka servers: addresses and the file with security settings, the same for the fabric and for Spark.

An address is `kafka://HOST:PORT[,HOST:PORT…][/TOPIC][?NAME=VALUE…]`. It never contains a secret. User, password and TLS
settings are in the file that `config` names. It has one `name=value` in each line, with the names of librdkafka:

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=planner
    sasl.password=…
    ssl.ca.location=/etc/penstock/ca.pem

Only its owner may read it (mode 600). Errors here say what failed, and callers give them their own error codes. This
module does not need confluent-kafka.
"""

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from penstock.fabric.nats_login import AddressError, SecretError, UnreadableError

KAFKA: Final = "kafka://"
_PORT: Final = 9092
_SERVER: Final = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII)
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
#: what the file can set: neither where the data goes nor how it is kept, nor code to load
_SECURITY: Final = re.compile(
    r"(security|sasl|ssl|https)\.[a-z0-9.]+|client\.(id|rack|dns\.lookup)|socket\.[a-z.]+", re.ASCII
)
_CODE: Final = re.compile(r"ssl\.(engine|providers|engine\.location)|sasl\.oauthbearer\.(method|config)", re.ASCII)


@dataclass(frozen=True)
class KafkaLogin:
    """The servers' addresses, and the path of the file with security settings; an empty path means none."""

    servers: tuple[str, ...]
    config: str = field(default="", repr=False)

    @property
    def bootstrap(self) -> str:
        """Return the servers as librdkafka and messages name them."""
        return ",".join(self.servers)

    def settings(self) -> dict[str, str | int | float | bool]:
        """Return the settings of librdkafka to connect with. Raises `UnreadableError`."""
        return {"bootstrap.servers": self.bootstrap, **(read_config(Path(self.config)) if self.config else {})}


@dataclass(frozen=True)
class KafkaAddress:
    """An address: how to log in, a topic, and further options, which the caller checks."""

    login: KafkaLogin
    topic: str
    options: Mapping[str, str]


def parse_kafka(text: str) -> KafkaAddress:
    """Read an address. Raises `AddressError`, `SecretError`.

    >>> parse_kafka("kafka://broker,other:9093/readings?start=0")
    KafkaAddress(login=KafkaLogin(servers=('broker:9092', 'other:9093')), topic='readings', options={'start': '0'})
    """
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise SecretError("url")
    servers = []
    for server in parts.netloc.split(","):
        found = _SERVER.fullmatch(server)
        if found is None or int(found[2] or _PORT) > 65_535:
            raise AddressError("url")
        servers.append(f"{found[1]}:{found[2] or _PORT}")
    topic = parts.path.removeprefix("/")
    given = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(given)
    if parts.scheme != "kafka" or parts.fragment or len(options) != len(given) or (topic and not is_topic(topic)):
        raise AddressError("url")
    config = options.pop("config", "")
    return KafkaAddress(KafkaLogin(tuple(servers), config), topic, options)


def is_topic(name: str) -> bool:
    """Return whether Kafka takes this as the name of a topic."""
    return bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


def read_config(path: Path) -> dict[str, str]:
    """Return the settings in a file. Raises `UnreadableError`, which does not say what the file contains."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UnreadableError("config")
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError("config") from error
    found: dict[str, str] = {}
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            name, sign, value = line.partition("=")
            name = name.strip()
            if not sign or name in found or not _SECURITY.fullmatch(name) or _CODE.fullmatch(name):
                raise UnreadableError("config")
            found[name] = value.strip()
    return found
