"""`penstock pipeline` by a policy file that names the chains of owners: what they revoked counts until then."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.pipeline.jobs_plant import POLICY, REVOCATIONS, build, interpreted, revoke, write_events


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def test_what_a_publisher_sent_after_the_order_is_refused(penstock: Shell) -> None:
    policy = build(penstock.folder / "plant")
    write_events(penstock.folder / "in" / "0.jsonl", range(4))
    penstock.ok("pipeline", "ingest", "in", "--policy", str(policy), "--out", "ingested")
    revoke(policy.parent, 1.5, "publisher")
    policy.write_text(REVOCATIONS + POLICY)
    admit = ("pipeline", "admit", "ingested", "--policy", str(policy), "--out")
    done = penstock.ok(*admit, "admitted", "-o", "json").json
    assert done["counts"].items() >= {"read": 4, "events": 2, "refused": 2}.items()
    assert done["reasons"] == {"guard.not-permitted": 2}
    (commit,) = (json.loads(file.read_text()) for file in Path("admitted/commits").rglob("part-*.txt"))
    log = "".join(file.read_text() for file in Path("admitted/decisions").rglob("part-*.txt"))
    assert f'"revision":"{commit["policies"][0]}"' in log
    chain = policy.parent / "owner.chain"
    chain.write_bytes(chain.read_bytes()[:-9])
    torn = penstock(*admit, "again")
    assert (torn.status, torn.code) == (1, "evolution.torn")
    assert "owner.chain" in torn.err
