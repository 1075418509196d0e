"""Roles on Spark: events of the past are judged by the roles of their time, row by row as a broker did it live."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.guard.london import MET, NEW, NOW, PITO, SMITH, SUSPECT, TYPE, V8516, transit
from tests.guard.test_roles import POLICY, RULES, ask, engine_of
from tests.pipeline.rows import collected, same, transit_frame

from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.guard import Delivery, environment
from penstock.guard.roles import RoleAuthority, RoleHistory
from penstock.pipeline.enforce.deliver import deliver
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber, load_policy
from penstock.pipeline.frames import ID
from penstock.pipeline.ingest.event_frames import TYPE as TYPE_COLUMN
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    DeactivateRole,
    OpenSession,
    RoleChange,
    RoleFounding,
    SetFact,
    StoredRoles,
)
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.signed import sign_value

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
    # Spark: all of them together, from the history of roles.
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


def written(folder: Path, stored: StoredRoles, by: SigningKey = PITO) -> str:
    (folder / "numberplate.type").write_bytes(canonical(sign_type(NEW, PITO).to_sexp()))
    (folder / "met.history").write_bytes(sign_value(stored, by).to_bytes())
    text = f"""types = ["numberplate.type"]
    roles = ["met.history"]
    names = {{ smith = "{SMITH.principal}" }}
    [[subscribers]]
    name = "smith"
    type = "uk.gov.pito.Numberplate@8516"
    """
    (folder / "policy.toml").write_text(text)
    return str(folder / "policy.toml")


def test_a_policy_file_names_a_domain_s_roles(tmp_path: Path) -> None:
    changes = tuple((NOW + minutes * MINUTE, change) for minutes, change in CHANGES)
    founding = RoleFounding(PITO.principal, POLICY + "\n".join(RULES))
    path = written(tmp_path, StoredRoles(PITO.principal, founding, changes))
    policy = load_policy(path, NOW + 200 * MINUTE)
    [reader] = policy.subscribers
    branches = policy.decide(reader.principal, Right.SUBSCRIBE, reader.type).require().branches
    periods = {(one.when.validity.starts, one.when.validity.ends) for one in branches if one.forced}
    first_end, last = NOW + 50 * MINUTE - timedelta(microseconds=1), NOW + 100 * MINUTE
    assert periods == {(NOW + 20 * MINUTE, first_end), (NOW + 80 * MINUTE, last)}
    shorter = written(tmp_path, StoredRoles(PITO.principal, founding, changes[:-1]))
    assert load_policy(shorter, NOW).revision != policy.revision


def test_others_do_not_sign_a_domain_s_roles(tmp_path: Path) -> None:
    founding = RoleFounding(PITO.principal, POLICY)
    with pytest.raises(RefusedError) as caught:
        written(tmp_path, StoredRoles(PITO.principal, founding), MET)
    assert caught.value.code == "evolution.wrong-key"
    with pytest.raises(MalformedError) as malformed:
        StoredRoles(MET.principal, founding)
    assert malformed.value.code == "role.record"
    path = written(tmp_path, StoredRoles(PITO.principal, founding))
    file = tmp_path / "met.history"
    file.write_bytes(file.read_bytes().replace(b"role guest", b"role quest"))
    with pytest.raises(RefusedError) as caught:
        load_policy(path, NOW)
    assert caught.value.code == "evolution.signature-mismatch"
