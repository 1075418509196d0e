"""One port for topics with quality of service, and its adapters.

`EmbeddedFabric` needs nothing; `penstock.fabric.nats.NatsFabric` needs the extra `nats` and a server.
"""

from penstock.fabric.clock import Clock as Clock
from penstock.fabric.clock import RandomBytes as RandomBytes
from penstock.fabric.clock import SystemClock as SystemClock
from penstock.fabric.embedded import EmbeddedFabric as EmbeddedFabric
from penstock.fabric.embedded import FileKeeper as FileKeeper
from penstock.fabric.envelope import Sample as Sample
from penstock.fabric.port import Fabric as Fabric
from penstock.fabric.port import Handler as Handler
from penstock.fabric.port import Service as Service
from penstock.fabric.qos import FOREVER as FOREVER
from penstock.fabric.qos import KEEP_ALL as KEEP_ALL
from penstock.fabric.qos import Durability as Durability
from penstock.fabric.qos import Order as Order
from penstock.fabric.qos import Ownership as Ownership
from penstock.fabric.qos import Priority as Priority
from penstock.fabric.qos import Qos as Qos
from penstock.fabric.qos import Reliability as Reliability
from penstock.fabric.qos import agree as agree
from penstock.fabric.reader import Callback as Callback
from penstock.fabric.reader import ReaderCounts as ReaderCounts
from penstock.fabric.reader import TopicSubscription as TopicSubscription
from penstock.fabric.writer import Publisher as Publisher
