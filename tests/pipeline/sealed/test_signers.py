"""Signed blocks in a log: opened only if they are signed, by somebody who may publish such events at that time."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.policy_kit import Publishers, Rulebook, trusted
from tests.pipeline.sealed_kit import BROKER, CAR, NOW, PLATE, SPEED, TRUCK, batch, event, key_files, ring, seal, sealer

from penstock.codec.blocks import Block, read_block, write_block
from penstock.codec.columns import microseconds
from penstock.crypto import SigningKey
from penstock.crypto.sealer import Sealer
from penstock.guard import Branch, Restriction, When
from penstock.model import EventType
from penstock.model.names import AttributeId
from penstock.pipeline.sealed.log import sealed_schema
from penstock.pipeline.sealed.reader import BlockReader
from penstock.pipeline.sealed.signers import Grant, SignerPolicy
from penstock.selector import ALWAYS as TRUE
from penstock.selector import NEVER, Selector
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.validity import ALWAYS, Validity

OTHER = SigningKey(b"\3" * 32)
HOUR = timedelta(hours=1)
COLUMNS = tuple(str(a.id) for a in CAR.attributes)
ANYTIME = Grant(BROKER.principal.digest, str(CAR.key), -(1 << 62), 1 << 62, frozenset(COLUMNS))
SIGNED = replace(CAR, signed=True)


def block(hours: int = 0, by: SigningKey = BROKER, event_type: EventType = CAR, rows: int = 1) -> bytes:
    """Return a signed block that was sealed some hours later."""
    found = Block.of([event(number, event_type) for number in range(1, 1 + rows)])
    return Sealer(ring(), by.principal, os.urandom, signing=by).seal(found, NOW + hours * HOUR)


def at(hours: int) -> int:
    return microseconds(NOW + hours * HOUR)


def codes(folder: Path, blocks: list[bytes], *grants: Grant, types: tuple[EventType, ...] = (SIGNED,)) -> list[str]:
    """Return the code of each block, or how many events it gave."""
    reading = replace(BlockReader.of(key_files(folder, ring()), types, COLUMNS), grants=grants)
    found = []
    for data in blocks:
        log = batch([data], types)
        [failed] = reading._failed([log])
        opened = sum(rows.num_rows for rows in reading._opened([log]))
        assert bool(failed.num_rows) != bool(opened)
        found.append(failed.column("@reason")[0].as_py() if failed.num_rows else str(opened))
    return found


@pytest.mark.parametrize("rows", [1, 3])
def test_only_what_is_signed_is_opened(tmp_path: Path, rows: int) -> None:
    good, unsigned = block(rows=rows), seal(sealer(), range(1, 1 + rows))
    parts, other = read_block(good), read_block(block(rows=rows))
    columns = [column for column in parts.columns if column is not None]
    grafted = write_block(parts.bound, parts.route, other.signature, columns)
    expected = [str(rows), "seal.unsigned", "seal.bad-signature"]
    assert codes(tmp_path, [good, unsigned, grafted], ANYTIME) == expected
    # Where the owner does not ask for it, nobody looks.
    assert codes(tmp_path / "free", [good, unsigned, grafted], types=(CAR,)) == [str(rows)] * 3


def test_the_signer_must_have_been_allowed_to(tmp_path: Path) -> None:
    blocks = [block(), block(by=OTHER), block(hours=2)]
    assert codes(tmp_path / "nobody", blocks) == ["seal.signer"] * 3
    early = ANYTIME._replace(last=at(1))
    assert codes(tmp_path / "early", blocks, early) == ["1", "seal.signer", "seal.signer"]
    less = ANYTIME._replace(attributes=frozenset(COLUMNS) - {PLATE})
    assert codes(tmp_path / "less", blocks, less) == ["seal.signer"] * 3
    elsewhere = ANYTIME._replace(type=str(TRUCK.key))
    assert codes(tmp_path / "elsewhere", blocks, elsewhere) == ["seal.signer"] * 3


def branch(validity: Validity = ALWAYS, *without: str, where: Selector = TRUE) -> Branch:
    attributes = frozenset(AttributeId.parse(name) for name in COLUMNS if name not in without) if without else None
    return Branch(action=Right.PUBLISH, attributes=attributes, when=When(validity), where=where)


def test_a_policy_says_who_may_at_which_of_the_times_in_a_log(session: SparkSession, tmp_path: Path) -> None:
    keys = key_files(tmp_path, ring())
    some = Validity.between(NOW + 2 * HOUR, NOW + 4 * HOUR)
    rules = {
        BROKER.principal: Restriction((branch(some), branch(ALWAYS, PLATE, SPEED))),
        OTHER.principal: Restriction((branch(where=NEVER),)),
    }
    blocks = [*(block(hours) for hours in range(6)), block(by=OTHER), block(1, event_type=TRUCK)]
    log = batch(blocks, (CAR, TRUCK)).to_pylist()
    schema = sealed_schema([name for name in log[0] if name[0] != "@"])
    frame = session.createDataFrame([tuple(row[name] for name in schema.names) for row in log], schema)
    judge = SignerPolicy(Publishers(Credentials(), (), (Rulebook(rules),)), (trusted(CAR),))
    reading = BlockReader.of(keys, (SIGNED,), COLUMNS)
    found = sorted(reading.verified(frame, judge).grants)
    everything, less = frozenset(COLUMNS), frozenset(COLUMNS) - {PLATE, SPEED}
    # The times are those of blocks, and not of the policy.
    assert [(grant.first, grant.last, grant.attributes) for grant in found] == [
        (at(0), at(1), less),
        (at(2), at(4), everything),
        (at(5), at(5), less),
    ]
    assert {(grant.signer, grant.type) for grant in found} == {(BROKER.principal.digest, str(CAR.key))}
    assert reading.verified(frame, None).grants == ()
    assert sorted(judge.grants_of([None, b"", *(row["@header"] for row in log)], keys)) == found
