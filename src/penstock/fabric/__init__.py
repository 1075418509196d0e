"""One port for topics with quality of service, and its adapters.

`EmbeddedFabric` needs nothing; `penstock.fabric.nats.NatsFabric` needs the extra `nats` and a server;
`penstock.fabric.kafka.KafkaFabric` needs the extra `kafka` and a server; `penstock.fabric.dds.DdsFabric` needs the
extra `dds` and a keeper in the domain.

- `port` is the interface that the rest of Penstock uses. Its writers and readers apply quality of service for every
  adapter; its clock is real or simulated.
- `qos` compares offered and requested quality of service.
- `addresses` opens the fabric that an address means.
- `envelope` converts samples to bytes and back.
- `tasks` starts asyncio tasks and reports their failures.
- `embedded` is the adapter within one process.
- `nats` is the adapter for NATS servers. `nats_login`, `nats_names`, `nats_api`, `nats_link` and `nats_feed`
  work for it.
- `nats_login` reads addresses, TLS settings and secrets.
- `nats_names` has the names of streams and subjects.
- `nats_api` connects and calls the JetStream API.
- `nats_link` keeps connections open over restarts of the server.
- `nats_feed` reads a stream into a subscription, in order.
- `nats_log` keeps the log of key managers as a JetStream stream.
- `kafka` is the adapter for Kafka. `kafka_login`, `kafka_link`, `kafka_records` and `kafka_requests` work for it.
- `kafka_login` reads addresses and the file with security settings.
- `kafka_link` has the clients of librdkafka, and the registry of topics.
- `kafka_records` has the settings of Kafka topics, and what their records say.
- `kafka_requests` has requests and answers.
- `dds` is the adapter for DDS domains. `dds_link` and `dds_keeper` work for it.
- `dds_link` opens readers and writers in a DDS domain, and reads and writes their bytes.
- `dds_keeper` keeps topics, owners and samples for a DDS domain, which has no server.
"""

from penstock.fabric.embedded import EmbeddedFabric as EmbeddedFabric
from penstock.fabric.embedded import FileKeeper as FileKeeper
from penstock.fabric.envelope import Sample as Sample
from penstock.fabric.port import Callback as Callback
from penstock.fabric.port import Clock as Clock
from penstock.fabric.port import Fabric as Fabric
from penstock.fabric.port import Handler as Handler
from penstock.fabric.port import KeyChoice as KeyChoice
from penstock.fabric.port import KeysUnder as KeysUnder
from penstock.fabric.port import Publisher as Publisher
from penstock.fabric.port import RandomBytes as RandomBytes
from penstock.fabric.port import ReaderCounts as ReaderCounts
from penstock.fabric.port import Service as Service
from penstock.fabric.port import SystemClock as SystemClock
from penstock.fabric.port import TopicSubscription as TopicSubscription
from penstock.fabric.port import WriterChanged as WriterChanged
from penstock.fabric.qos import FOREVER as FOREVER
from penstock.fabric.qos import KEEP_ALL as KEEP_ALL
from penstock.fabric.qos import Durability as Durability
from penstock.fabric.qos import Order as Order
from penstock.fabric.qos import Ownership as Ownership
from penstock.fabric.qos import Priority as Priority
from penstock.fabric.qos import Qos as Qos
from penstock.fabric.qos import Reliability as Reliability
from penstock.fabric.qos import agree as agree
