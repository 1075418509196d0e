"""A small world for jobs, as files: two versions of a type, publishers and readers with rights, and events.

key 1  the owner        key 2  a publisher, in whose events the region is always `north`
key 3  somebody without a right
key 4  `statistics`, sees region and value        key 5  `engineer`, sees all where the value is above 20
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from tests.pipeline.policy_kit import define
from tests.trust.kit import NOW, grant, key, who

from penstock.model import EventType, Kind
from penstock.pipeline.jobs.session_settings import INTERPRETED
from penstock.store.files.policy_files import ChainFile
from penstock.trust import Credentials, Right, event_tag, read_credentials, sign_type
from penstock.trust.capabilities import BoundSelector
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor

HIDDEN = "1974.5"
"""A constant of the policy, which nobody is to find in a plan."""
NAME = "org.plant.Reading"
FIRST = define(NAME, {"sensor": Kind.STRING, "region": Kind.STRING, "value": Kind.FLOAT}, owner=who(1))
SECOND = FIRST.rename("sensor", "probe", version="1")
SENSOR, REGION, VALUE = (attribute.id for attribute in EventType.of(FIRST).attributes)

POLICY = f"""
types = ["*.type"]
credentials = ["certs/*.cert"]
names = {{ statistics = "{who(4)}", engineer = "{who(5)}" }}

[[subscribers]]
name = "statistics"
type = "{NAME}"

[[subscribers]]
name = "engineer"
type = "{NAME}@1"
where = "value <> {HIDDEN}"

[[subscribers]]
name = "auditor"
principal = "statistics"
type = "{NAME}"

[[subscribers]]
name = "stranger"
principal = "{who(3)}"
type = "{NAME}"
"""


def build(folder: Path) -> Path:
    """Write everything but events, and return the policy file."""
    (folder / "certs").mkdir(parents=True)
    for number, definition in enumerate((FIRST, SECOND)):
        (folder / f"reading-{number}.type").write_bytes(sign_type(definition, key(1)).to_bytes())
    above = BoundSelector.of("value > 20", EventType.of(FIRST))
    rights = {
        "publisher": (2, event_tag(who(1), NAME, None, [Right.PUBLISH], forced={REGION: "north"})),
        "statistics": (4, event_tag(who(1), NAME, None, [Right.SUBSCRIBE], attributes=[REGION, VALUE])),
        "engineer": (5, event_tag(who(1), NAME, None, [Right.SUBSCRIBE], where=[above])),
    }
    for name, (subject, tag) in rights.items():
        (folder / "certs" / f"{name}.cert").write_bytes(Credentials.of(grant(1, subject, tag)).to_bytes())
    policy = folder / "policy.toml"
    policy.write_text(POLICY, encoding="utf-8")
    return policy


def certificate(plant: Path, name: str) -> str:
    """Return the id of one of the certificates."""
    (found,) = read_credentials((plant / "certs" / f"{name}.cert").read_bytes()).verify()
    return found.id


def revoke(plant: Path, after: float, *names: str, by: int = 1) -> None:
    """Have certificates revoked, so many seconds after the beginning; as the owner's chain says it."""
    author = PolicyAuthor(key(by))
    with ChainFile(plant / "owner.chain").hold() as held:
        author.resume(held.chain.events)
        ids = tuple(certificate(plant, name) for name in names)
        held.append([author.change(NOW + timedelta(seconds=after), Revoke(ids))])


REVOCATIONS = 'revocations = ["owner.chain"]\n'
"""What stands in a policy file that uses that chain."""


def build_revocable(plant: Path) -> Path:
    """Build a plant whose policy uses the owner's chain, in which nothing is revoked yet that anybody has."""
    file = build(plant)
    revoke(plant, 0)
    file.write_text(REVOCATIONS + POLICY)
    return file


def line(number: int) -> str:
    """Return a record: every seventh is broken, every fifth is by somebody without a right."""
    if number % 7 == 6:
        return f"broken {number}"
    second = number % 3 == 0
    sensor = "probe" if second else "sensor"
    data = {sensor: f"s{number % 4}", "region": "south", "value": float(number)}
    event = {
        "specversion": "1.0",
        "id": f"e{number}",
        "source": str(who(3 if number % 5 == 4 else 2)),
        "type": f"{who(1)}/{NAME}@{1 if second else 0}",
        "time": (NOW + timedelta(seconds=number)).isoformat(),
        "data": data,
    }
    return json.dumps(event)


def write_events(file: Path, numbers: Iterable[int]) -> None:
    """Write a file of records."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line(number)}\n" for number in numbers), encoding="utf-8")


def good(count: int) -> list[int]:
    """Return the numbers of the records that are events."""
    return [number for number in range(count) if number % 7 != 6]


def admitted(count: int) -> list[int]:
    """Return the numbers of the events that may be published."""
    return [number for number in good(count) if number % 5 != 4]


def seen(subscriber: str, count: int) -> list[tuple[str, str | None, str, float]]:
    """Return what a reader is to get: id, sensor, region, value."""
    if subscriber == "engineer":
        return sorted((f"e{n}", f"s{n % 4}", "north", float(n)) for n in admitted(count) if n > 20)
    return sorted((f"e{n}", None, "north", float(n)) for n in admitted(count))


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Let Spark interpret expressions: for a handful of rows, compiling them takes most of the time."""
    before = {name: spark.conf.get(name, None) for name in INTERPRETED}
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)
