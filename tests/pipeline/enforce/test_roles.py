"""Roles on Spark: events of the past are judged by the roles of their time, row by row as a broker did it live."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.guard.london import MET, NEW, NOW, PITO, SMITH, SUSPECT, TYPE, V8516, transit
from tests.guard.test_roles import POLICY, RULES, TRACK, ask, engine_of
from tests.pipeline.rows import collected, same, transit_frame

from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.guard import Delivery, EventRequest, decide, environment
from penstock.guard.enforce import Rules
from penstock.guard.roles import ActiveRoles, RoleAuthority, RoleHistory
from penstock.model.events import Event, TransitEvent
from penstock.model.principals import Principal
from penstock.model.values import Scalar
from penstock.pipeline.enforce.deliver import SUBSCRIBER, deliver
from penstock.pipeline.enforce.guard_results import with_guards
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber, load_policy
from penstock.pipeline.frames import ID
from penstock.pipeline.ingest.event_frames import TYPE as TYPE_COLUMN
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    DeactivateRole,
    EndSession,
    OpenSession,
    ReplacePolicy,
    RoleChange,
    RoleEngine,
    RoleFounding,
    SetFact,
    StoredRoles,
    WithdrawAppointment,
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


#: what random policies choose from
PRIVILEGES = (
    TRACK,
    "allow guest to subscribe self/uk.gov.pito.Numberplate(location);",
    "allow guest to subscribe self/uk.gov.pito.*(timestamp) where .location = 'Victoria';",
    "allow tracker(p) to subscribe self/uk.gov.pito.Numberplate(numberplate) matching unlike(.numberplate, p);",
    "allow owner to subscribe self/uk.gov.pito.Numberplate(timestamp, location) if where minute < 30;",
    "allow owner to subscribe below self/uk.gov.pito.Numberplate(numberplate) if fact assigned(principal);",
    "allow guest to subscribe self/uk.gov.pito.Numberplate(numberplate) matching black(.location, 4);",
    "allow tracker(p) to subscribe self/uk.gov.pito.Numberplate(location) matching black(p, 9);",
)
PREDICATES = "predicate unlike(a: string, b: string) is a <> b; predicate black(text: string, length: integer);\n"
PLATES = (SUSPECT, "KT52 ABC")


def black(values: Mapping[str, Scalar], _environment: Mapping[str, Scalar]) -> bool:
    return len(str(values["text"])) > int(str(values["length"]))


def random_policy(chance: Random) -> str:
    return POLICY + PREDICATES + "\n".join(chance.sample(PRIVILEGES, 3))


def random_change(chance: Random, engine: RoleEngine, people: Sequence[Principal]) -> RoleChange:
    who, session = chance.choice(people), f"s{chance.randrange(len(people))}"
    records = [one.id for one in engine.records() if one.session] or ["1"]
    orders = [one.id for one in engine.records() if not one.session] or ["1"]
    until = engine.now + chance.randint(1, 60) * MINUTE
    choices: list[RoleChange] = [
        *[ActivateRole(session, "tracker", (None,)), ActivateRole(session, "guest")] * 4,
        *[ActivateRole(session, "owner")] * 3,
        *[OpenSession(session, who)] * 2,
        *[SetFact("assigned", chance.choice([True, True, True, False, None]), (str(who),))] * 4,
        SetFact("open", chance.choice([True, True, False])),
        *[Appoint("order", who, PITO.principal, (chance.choice(PLATES),), chance.choice([None, until]))] * 3,
        WithdrawAppointment(chance.choice(orders), PITO.principal),
        DeactivateRole(chance.choice(records)),
        EndSession(session),
        ReplacePolicy(random_policy(chance)),
    ]
    return chance.choice(choices)


class RandomDomain:
    """A domain whose roles change at random, driven live, with its people as subscribers."""

    def __init__(self, chance: Random, number: int) -> None:
        self.people = [Principal(bytes([number, person]) * 16) for person in range(6)]
        self.founding = RoleFounding(PITO.principal, random_policy(chance))
        self.changes: list[tuple[datetime, RoleChange]] = []
        self.engine = self.founding.engine()
        self.authority = RoleAuthority(ActiveRoles(self.engine), frozenset({PITO.principal}))
        self.shown: dict[tuple[str, str], Event] = {}
        self.names: set[str] = set()
        self.results: list[tuple[str, str, bool | None]] = []
        rules = Rules({"black": black}, on_guard=lambda *one: self.results.append(one))
        beginning: list[RoleChange] = [SetFact("open", True)]
        for person, who in enumerate(self.people):
            beginning += [OpenSession(f"s{person}", who), SetFact("assigned", True, (str(who),))]
            beginning.append(Appoint("order", who, PITO.principal, (chance.choice(PLATES),)))
        for change in beginning:
            self.change(NOW, change)
        for minute in range(90):
            now = NOW + minute * MINUTE
            for _ in range(chance.choice([0, 1, 3])):
                self.change(now, random_change(chance, self.engine, self.people))
            self.deliver(now, minute, rules)

    def change(self, now: datetime, change: RoleChange) -> None:
        self.engine.advance(now)
        with suppress(RefusedError):
            self.engine.apply(change)
            self.changes.append((now, change))

    def deliver(self, now: datetime, minute: int, rules: Rules) -> None:
        """Show an event of this instant, and one a moment later, to everybody."""
        for event in events_at(minute):
            assert event.time is not None
            self.engine.advance(event.time)
            for who in self.people:
                request = EventRequest(who, Right.SUBSCRIBE, V8516, event.time)
                found = decide(request, [self.authority]).restriction
                self.names.update(name for branch in found.branches for name in branch.guards)
                seen = Delivery(found, TYPE, rules=rules)(event, environment(event.time)) if found.branches else None
                if seen is not None:
                    self.shown[str(who), event.id] = seen


def events_at(minute: int) -> list[TransitEvent]:
    now, plate = NOW + minute * MINUTE, PLATES[minute % 2]
    places = ("Victoria", "Soho")[minute % 3 == 0], None if minute % 7 == 0 else "Vauxhall"
    return [
        replace(transit(plate, location=place), id=f"{minute}/{number}", time=now + number * MINUTE / 2)
        for number, place in enumerate(places)
    ]


def test_random_changes_of_roles_are_judged_alike_live_and_on_spark(spark: SparkSession) -> None:
    """Several domains with random policies and changes, policies replaced among them, in one job."""
    chance = Random(20_261_117)  # noqa: S311  # not a secret
    domains = [RandomDomain(chance, number) for number in range(1, 7)]
    authorities, subscribers = [], []
    for domain in domains:
        history = RoleHistory(domain.founding.engine(), domain.changes)
        history.advance(NOW + 200 * MINUTE)
        authorities.append(RoleAuthority(history, frozenset({PITO.principal})))
        subscribers += [Subscriber(str(who), who, V8516) for who in domain.people]
    policy = PipelinePolicy(Credentials(), tuple(subscribers), tuple(authorities))
    events = [event for minute in range(90) for event in events_at(minute)]
    results = [
        (json.dumps({"time": "", "event": event, "guard": guard, "held": held}),)
        for domain in domains
        for event, guard, held in domain.results
    ]
    names = {name for domain in domains for name in domain.names}
    sent = transit_frame(spark, [TYPE], events).withColumn(TYPE_COLUMN, F.lit(str(TYPE.name)))
    sent, guards = with_guards(sent, spark.createDataFrame(results, "value STRING"), names)
    rows = collected(deliver(sent, [TYPE], policy, guards=guards).by_subscriber())
    found = {(row[SUBSCRIBER], row[ID]): row for row in rows}
    expected = {key: seen for domain in domains for key, seen in domain.shown.items()}
    assert len(names) > 1
    assert len(expected) > 500
    assert {who for who, _ in expected} > {str(who) for who in domains[0].people[:1]}
    assert found.keys() == expected.keys()
    for key, seen in expected.items():
        for name, value in seen.values.items():
            assert same(value, found[key][TYPE.by_name[name].id]), (key, name)
    # Without their results, nothing is shown through black boxes.
    unknown = {(row[SUBSCRIBER], row[ID]) for row in collected(deliver(sent, [TYPE], policy).by_subscriber())}
    assert unknown < found.keys()


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
