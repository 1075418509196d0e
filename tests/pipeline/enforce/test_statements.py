"""Validity statements on Spark: past events are judged by the statements of their time, as brokers did it live."""

import random
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.budget import amount
from tests.guard.london import NOW, PITO, TYPE, V8516, YEAR, grant, numberplate, transit
from tests.pipeline.rows import collected, transit_frame

from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.guard import CapabilityAuthority, Delivery, EventRequest, decide, environment
from penstock.pipeline.enforce.deliver import SUBSCRIBER, deliver
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.frames import ID
from penstock.pipeline.ingest.event_frames import TYPE as TYPE_COLUMN
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.signed import SignedValue, sign_value
from penstock.trust.statement_book import StatementBook, StatementHistory
from penstock.trust.statements import (
    ActiveRevocation,
    Heartbeat,
    OnlineKind,
    OnlineTerms,
    Revalidation,
    RevocationList,
    StatementAuthor,
    ValidityClaim,
)

SECOND = timedelta(seconds=1)
#: the seconds in which statements begin and end, and events happen
PERIOD = 40


class Case:
    """A reader with a right, and the statements of its signer: some overlap, are repeated, or come too late."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.name = f"reader {number}"
        self.reader, self._signer = (SigningKey(bytes([kind, number]) * 16) for kind in (1, 2))
        kind = chance.choice([OnlineKind.CRL, OnlineKind.REVALIDATION, OnlineKind.ACTIVE])
        pause = chance.randint(2, 9) * SECOND if kind is OnlineKind.ACTIVE else None
        test = OnlineTerms(kind, self._signer.principal, (), pause).to_test()
        valid = replace(YEAR, online=(test,))
        self.right = grant(PITO, self.reader.principal, numberplate(Right.SUBSCRIBE), valid=valid)
        made = self._active(chance) if kind is OnlineKind.ACTIVE else self._timed(chance, kind)
        self.statements: list[SignedValue[ValidityClaim]] = list(made)

    def _listed(self, chance: random.Random) -> list[str]:
        return [self.right.id] if chance.random() < 0.5 else []

    def _timed(self, chance: random.Random, kind: OnlineKind) -> list[SignedValue[RevocationList | Revalidation]]:
        made = RevocationList if kind is OnlineKind.CRL else Revalidation
        begins = [NOW + chance.randint(0, PERIOD) * SECOND for _ in range(chance.randint(1, 7))]
        return [
            sign_value(
                made(
                    self._signer.principal,
                    begin,
                    begin + chance.randint(0, 8) * SECOND,
                    frozenset(self._listed(chance)),
                ),
                self._signer,
            )
            for begin in begins
        ]

    def _active(self, chance: random.Random) -> list[SignedValue[ActiveRevocation | Heartbeat]]:
        author, made = StatementAuthor(self._signer), list[SignedValue[ActiveRevocation | Heartbeat]]()
        for second in sorted(chance.sample(range(PERIOD), chance.randint(1, 12))):
            now = NOW + second * SECOND
            if chance.random() < 0.4:
                made.append(author.revoke(now, self._listed(chance)))
            if chance.random() < 0.8:
                made.append(author.heartbeat(now, chance.randint(1, 12) * SECOND))
        return made

    def live(self, moments: list[datetime]) -> set[int]:
        """Return at which moments a broker would have delivered. Timed statements arrive before all, others in time."""
        book, left = StatementBook(PITO.principal), list(self.statements)
        authority, found = CapabilityAuthority(Credentials.of(self.right), online=book.check), set[int]()
        for number, moment in enumerate(moments):
            while left and getattr(left[0].value, "time", NOW) <= moment:
                with suppress(RefusedError):
                    book.take(left[0], getattr(left.pop(0).value, "time", NOW - SECOND))
            decision = decide(EventRequest(self.reader.principal, Right.SUBSCRIBE, V8516, moment), [authority])
            event = replace(transit(), time=moment)
            if decision.restriction.branches and Delivery(decision.restriction, TYPE)(event, environment(moment)):
                found.add(number)
        return found


def test_live_and_spark_agree_while_statements_come_overlap_and_end(spark: SparkSession) -> None:
    chance = random.Random(22)  # noqa: S311  # cases, not secrets
    cases = [Case(number, chance) for number in range(amount(16))]
    moments = [NOW + half * SECOND / 2 for half in range(2 * PERIOD + 24)]
    expected = {(case.name, str(number)) for case in cases for number in case.live(moments)}
    assert len(cases) * 10 < len(expected) < len(cases) * len(moments) / 2
    statements = [one for case in cases for one in case.statements]
    chance.shuffle(statements)
    policy = PipelinePolicy(
        Credentials.of(*(case.right for case in cases)),
        tuple(Subscriber(case.name, case.reader.principal, V8516) for case in cases),
        statements=StatementHistory((*statements, *statements[:9])),
    )
    events = [replace(transit(), id=str(number), time=moment) for number, moment in enumerate(moments)]
    sent = transit_frame(spark, [TYPE], events).withColumn(TYPE_COLUMN, F.lit(str(TYPE.name)))
    rows = collected(deliver(sent, [TYPE], policy).by_subscriber())
    assert {(row[SUBSCRIBER], row[ID]) for row in rows} == expected
    assert len(rows) == len(expected)
