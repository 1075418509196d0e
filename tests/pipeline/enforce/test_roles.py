"""Roles on Spark: events of the past are judged by the roles of their time, row by row as a broker did it live."""

from dataclasses import replace
from datetime import datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.guard.london import NOW, PITO, SMITH, SUSPECT, TYPE, V8516, transit
from tests.guard.test_roles import RULES, ask, engine_of
from tests.pipeline.rows import collected, same, transit_frame

from penstock.guard import Delivery, environment
from penstock.guard.roles import RoleAuthority, RoleHistory
from penstock.pipeline.enforce.deliver import deliver
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.frames import ID
from penstock.pipeline.ingest.event_frames import TYPE as TYPE_COLUMN
from penstock.roles.engine import ActivateRole, Appoint, DeactivateRole, OpenSession, RoleChange, SetFact
from penstock.trust.credentials import Credentials

MINUTE = timedelta(minutes=1)
CHANGES: list[tuple[int, RoleChange]] = [
    (0, OpenSession("s", SMITH.principal)),
    (10, SetFact("assigned", True, (str(SMITH.principal),))),
    (10, Appoint("order", SMITH.principal, PITO.principal, (SUSPECT,), NOW + 100 * MINUTE)),
    (20, ActivateRole("s", "tracker", (SUSPECT,))),
    (30, SetFact("open", True)),
    (30, ActivateRole("s", "guest")),
    (40, ActivateRole("s", "owner")),
    (50, SetFact("assigned", None, (str(SMITH.principal),))),
    (70, SetFact("assigned", True, (str(SMITH.principal),))),
    (80, ActivateRole("s", "tracker", (SUSPECT,))),
    (90, SetFact("open", False)),
    (110, DeactivateRole("4")),
]


def test_live_and_spark_agree_over_a_period_in_which_roles_changed(spark: SparkSession) -> None:
    changes: list[tuple[datetime, RoleChange]] = [(NOW + minutes * MINUTE, change) for minutes, change in CHANGES]
    moments = [
        NOW + minutes * MINUTE + offset for minutes in range(0, 130, 5) for offset in (-MINUTE / 60, MINUTE / 60)
    ]
    events = [
        replace(transit(plate), id=f"{number}/{plate}", time=moment)
        for number, moment in enumerate(moments)
        for plate in (SUSPECT, "KT52 ABC")
    ]
    # Live: each event at its time.
    live, left, expected = engine_of(*RULES), list(changes), {}
    for event in events:
        assert event.time is not None
        while left and left[0][0] <= event.time:
            now, change = left.pop(0)
            live.advance(now)
            live.apply(change)
        live.advance(event.time)
        decision = ask(live)
        if decision.restriction.branches and event.time >= NOW:
            seen = Delivery(decision.restriction, TYPE)(event, environment(event.time))
            if seen is not None:
                expected[event.id] = seen
    assert 20 < len(expected) < len(events)
    # Spark: all of them immediately, from the history of roles.
    history = RoleHistory(engine_of(*RULES), changes)
    history.advance(moments[-1])
    authority = RoleAuthority(history, frozenset({PITO.principal}))
    policy = PipelinePolicy(Credentials(), (Subscriber("smith", SMITH.principal, V8516),), (authority,))
    sent = transit_frame(spark, [TYPE], events).withColumn(TYPE_COLUMN, F.lit(str(TYPE.name)))
    found = {row[ID]: row for row in collected(deliver(sent, [TYPE], policy).by_subscriber())}
    assert found.keys() == expected.keys()
    for id_, seen in expected.items():
        for name, value in seen.values.items():
            assert same(value, found[id_][TYPE.by_name[name].id])
