"""Policies in the pipeline: events are admitted and delivered as brokers do it."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from tests.guard.london import BAG, BILLING, CCS, MALLORY, MET, NOW, PITO, PLATE, TO_CCS, TYPE, V4799, V8516, name
from tests.guard.policy_kit import policy
from tests.guard.test_policies import SPEEDING
from tests.pipeline.rows import collected, transit_frame
from tests.trust.kit import refused

from penstock.guard import Delivery, Effect, Publication, decide, environment
from penstock.guard.capabilities import CapabilityAuthority
from penstock.guard.decision import EventRequest
from penstock.guard.policies import NO_POLICIES, Policies
from penstock.model import Domain, Event, Scalar, TransitEvent
from penstock.pipeline.enforce.admit import admit
from penstock.pipeline.enforce.deliver import SUBSCRIBER, deliver
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber, load_policy
from penstock.pipeline.frames import ID, typed_schema
from penstock.pipeline.ingest.event_frames import TYPE as OF_TYPE
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.validity import Validity

DAY = timedelta(days=1)
KNOWN = (V8516, SPEEDING)
BOTH = [one.event_type for one in KNOWN]
#: the police see plates, but for yesterday; at night nobody sees anything of Dover, and of speeding only the police
POLICE = policy(
    'deny target clause part == "numberplate" condition not ("police" in role)',
    'deny target clause place == "Dover" condition hour >= 18',
    'deny target clause type_name == "uk.gov.pito.Speeding" condition not ("police" in role)',
    "permit",
)
ROLE = name(PITO, b"police", MET.principal, Validity.between(NOW - DAY / 2, None))
READERS = {"met": MET, "billing": BILLING, "mallory": MALLORY}
GOVERNED = Policies.of(POLICE, domains=(Domain("UK", PITO.principal, clients=(CCS.principal,)),))
POLICY = PipelinePolicy(
    BAG + Credentials.of(ROLE),
    tuple(Subscriber(who, key.principal, V8516) for who, key in READERS.items()),
    policies=GOVERNED,
    types=KNOWN,
)


def event(number: int, place: str | None, hours: int, *, fast: bool = False) -> TransitEvent:
    of_type = (SPEEDING if fast else V8516).event_type
    values: dict[str, Scalar] = {"numberplate": f"P{number}", "location": place, "timestamp": NOW}
    made = Event.of(
        of_type, values | ({"speed": 99} if fast else {}), id=str(number), time=NOW + timedelta(hours=hours)
    )
    return made.to_transit()


EVENTS = [
    event(n, place, hours, fast=fast)
    for n, (place, hours, fast) in enumerate(
        (place, hours, fast) for place in ("Victoria", "Dover", None) for hours in (-24, 0, 8) for fast in (False, True)
    )
]


def lively(reader: str) -> dict[str, dict[str, Scalar]]:
    """Return what a reader gets of a broker, by event, each decided at the time of the event."""
    certified = CapabilityAuthority(POLICY.credentials)
    found: dict[str, dict[str, Scalar]] = {}
    for one in EVENTS:
        assert one.time is not None
        source = GOVERNED.over(certified, certified, lambda _key, _now: KNOWN)
        decision = decide(EventRequest(READERS[reader].principal, Right.SUBSCRIBE, V8516, one.time), [source])
        seen = Delivery(decision.restriction, TYPE)(one, environment(one.time))
        if seen is not None:
            found[one.id] = {key: value for key, value in seen.values.items() if value is not None}
    return found


def test_delivered_as_by_a_broker(spark: SparkSession) -> None:
    frame = transit_frame(spark, BOTH, EVENTS)
    of_type = {
        one.id: str((SPEEDING if SPEEDING.event_type.key == one.key else V8516).event_type.name) for one in EVENTS
    }
    told = spark.createDataFrame([*of_type.items()], [ID, OF_TYPE])
    rows = collected(deliver(frame.join(told, ID), BOTH, POLICY).by_subscriber())
    found: dict[str, dict[str, dict[str, Scalar]]] = {reader: {} for reader in READERS}
    for row in rows:
        shown = {a.name: row[a.id] for a in TYPE.attributes if row[a.id] is not None}
        found[row[SUBSCRIBER]][row[ID]] = shown
    for reader in READERS:
        expected = {id_: values.keys() for id_, values in lively(reader).items()}
        assert {id_: values.keys() for id_, values in found[reader].items()} == expected
    # It is not an accident: plates today and not yesterday, and for others none.
    assert {"numberplate" in shown for shown in found["met"].values()} == {True, False}
    assert 0 < len(found["billing"]) < len(found["met"]) < len(EVENTS)
    assert found["mallory"] == {}


def test_admitted_as_by_a_broker(spark: SparkSession) -> None:
    rules = ('deny target clause part == "numberplate"', 'deny target clause place == "Atlantis"', "permit")
    judged = PipelinePolicy(Credentials.of(TO_CCS), policies=Policies.of(policy(*rules)))
    places = ("Victoria", "Atlantis", None)
    rows = [(str(n), NOW, str(CCS.principal), "P", NOW, place) for n, place in enumerate(places)]
    typed = spark.createDataFrame(rows, typed_schema(TYPE))
    admitted = {row[ID]: row for row in collected(admit(typed, V8516, judged).events)}
    publication = Publication(judged.decide(CCS.principal, Right.PUBLISH, V8516).require(), TYPE)
    for id_, place in enumerate(places):
        made = Event.of(TYPE, {"numberplate": "P", "location": place, "timestamp": NOW}, id=str(id_), time=NOW)
        if place == "Atlantis":
            with refused("guard.not-permitted"):
                publication(made, environment(NOW))
        else:
            values = publication(made, environment(NOW)).values
            assert {a.id for a in TYPE.attributes if admitted[str(id_)][a.id] is not None} == values.keys()
            assert PLATE not in values
    assert admitted.keys() == {"0", "2"}


def test_policy_files_name_policies(tmp_path: Path) -> None:
    (tmp_path / "plate.type").write_bytes(sign_type(V8516.definition, PITO).to_bytes())
    (tmp_path / "old.type").write_bytes(sign_type(V4799.definition, PITO).to_bytes())
    (tmp_path / "all.certs").write_bytes(BAG.to_bytes())
    (tmp_path / "no.policy").write_text("policy no { apply deny-overrides rule r { deny } }")
    names = f'[names]\npito = "{PITO.principal}"\nmallory = "{MALLORY.principal}"\n[domains]\nmallory = "Nowhere"\n'
    text = f'types = ["plate.type"]\nhistory = ["old.type"]\ncredentials = ["all.certs"]\n{names}'
    (tmp_path / "policy.toml").write_text(f'{text}[policies]\nfiles = ["no.policy"]\nowners = ["pito"]\n')
    loaded = load_policy(str(tmp_path / "policy.toml"), NOW)
    assert loaded.decide(MET.principal, Right.SUBSCRIBE, V8516).effect is Effect.DENY
    # Brokers carry and read for others, and are not asked.
    assert loaded.of_brokers().decide(MET.principal, Right.SUBSCRIBE, V8516).effect is Effect.PERMIT
    # Who is at home somewhere may publish something by policies alone.
    assert MALLORY.principal in loaded.principals()
    bare = replace(loaded, policies=NO_POLICIES)
    assert MALLORY.principal not in bare.principals()
    assert loaded.revision != bare.revision
    assert bare.of_brokers() is bare
