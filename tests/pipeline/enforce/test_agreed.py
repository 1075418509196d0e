"""Agreed rules in the pipeline: events are admitted, delivered and compared as brokers do it."""

from dataclasses import replace
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.guard.agreed_kit import (
    ANN,
    BOB,
    EVE,
    OWNING,
    P1,
    P2,
    P3,
    PROFILES,
    agreed,
    agreement,
    right,
    signed_types,
    types,
)
from tests.moderator.kit import event, rule
from tests.pipeline.rows import collected
from tests.trust.kit import NOW, key, refused

from penstock.codec.sexp import canonical
from penstock.guard import AgreementMode, Agreements, Branch, Restriction
from penstock.guard.agreements import Agreement
from penstock.model.tree import TreeScope
from penstock.moderator.rules.rules import SubscribeRule
from penstock.pipeline.enforce.admit import admit
from penstock.pipeline.enforce.deliver import SUBSCRIBER, ByType, deliver
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber, load_policy
from penstock.pipeline.enforce.programs import Program
from penstock.pipeline.frames import ID, attributes_of, metadata, quoted, typed_schema
from penstock.pipeline.ingest.event_frames import TYPE
from penstock.pipeline.whatif import compare
from penstock.selector import ALWAYS, parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.signed import sign_value, statements_to_sexp

NAMES = ("X", "A1")
VERIFIED = {name: types()[event(name)] for name in NAMES}
VERSIONS = [verified.event_type for verified in VERIFIED.values()]
READERS = {"ann@X": (ANN, "X"), "ann@A1": (ANN, "A1"), "bob@X": (BOB, "X"), "eve@X": (EVE, "X")}
LAST = rule("a1", "A1", "age >= 17", "licensed OR company = 'B'", of=[P1, P2, P3])
RULES = (
    rule("x", "X", "role = 'engineer'"),
    SubscribeRule("wish", event("A1"), ANN, ANN, parse("licensed")),
)


def policy_of(made: Agreement) -> PipelinePolicy:
    """Everybody has certificates for what it reads and writes."""
    subscribers = tuple(Subscriber(name, who, VERIFIED[about]) for name, (who, about) in READERS.items())
    certificates = [right(of, name, Right.SUBSCRIBE) for of, name in READERS.values()]
    certificates += [right(of, name, Right.PUBLISH) for of in (P1, P2, P3) for name in NAMES]
    return PipelinePolicy(
        Credentials.of(*certificates), subscribers, agreements=Agreements((agreed(made),), revision="r")
    )


def sent(spark: SparkSession, policy: PipelinePolicy) -> DataFrame:
    """Return what is admitted of one event of each publisher and type, as transit events."""
    parts = []
    for name, verified in VERIFIED.items():
        empty = dict.fromkeys(verified.event_type.by_name)
        rows = [(f"{number}/{name}", NOW, str(of), *empty.values()) for number, of in enumerate((P1, P2, P3), start=1)]
        typed = spark.createDataFrame(rows, typed_schema(verified.event_type))
        found = admit(typed, verified, policy).events
        ids = [a.id for a in attributes_of(VERSIONS)]
        columns = [quoted(id_) if id_ in found.columns else F.lit(None).cast("string").alias(id_) for id_ in ids]
        parts.append(found.select(F.lit(str(verified.event_type.name)).alias(TYPE), *metadata(), *columns))
    return reduce(DataFrame.unionByName, parts)


def test_admitted_delivered_and_compared(spark: SparkSession) -> None:
    made = agreement(*RULES, LAST, scope=TreeScope.UPWARD, combining=AgreementMode.BOTH)
    policy, rules = policy_of(made), agreed(made)
    admitted = sent(spark, policy).persist()
    publishers = {"1": P1, "2": P2}
    published = {f"{n}/{name}" for n, of in publishers.items() for name in NAMES if rules.may_publish(event(name), of)}
    assert {row[ID] for row in collected(admitted)} == published
    found = {(row[SUBSCRIBER], row[ID]) for row in collected(deliver(admitted, VERSIONS, policy).by_subscriber())}
    assert found == {
        (reader, id_)
        for id_ in published
        for about in [event(id_.partition("/")[2])]
        for reader, (who, above) in READERS.items()
        if who != EVE and made.vocabulary.tree.is_sub(about, event(above))
        if rules.may_receive(about, publishers[id_[0]], who)
    }
    # It is not an accident: something is delivered and something is not.
    assert 0 < len(found) < 3 * len(published)
    # What another agreement would change.
    after = policy_of(agreement(*RULES, replace(LAST, fnc_s=parse("role = 'worker'")), scope=TreeScope.UPWARD))
    history = admitted.where(quoted(TYPE) == str(VERIFIED["A1"].event_type.name)).drop(TYPE)
    changes = compare(history, policy, after, types=[VERIFIED["A1"].event_type]).changes
    lost = {reader for reader, id_ in found if reader.startswith("ann") and id_.endswith("/A1")}
    assert {(c.reader.name, c.gained, c.lost) for c in changes if c.attribute is None} == {(r, 0, 1) for r in lost}
    assert lost
    admitted.unpersist()


def test_where_no_event_says_of_which_type_it_is_nothing_passes_that_depends_on_it() -> None:
    asked = ByType(VERSIONS, told=False)
    below, above, all_ = (
        Branch(action=Right.SUBSCRIBE, only=only)
        for only in (frozenset({event("A1")}), None, frozenset(map(event, NAMES)))
    )
    made = Program(0, Restriction((below, above, all_)), VERSIONS[0], ALWAYS, ())
    guards = [branch.guards for branch in asked.program(made).restriction.branches]
    assert [len(names) for names in guards] == [1, 0, 0]
    assert asked.guards() == {}
    # Of a type that the reader has not subscribed to, nothing passes where events say it.
    narrow = replace(made, event_type=VERSIONS[1])
    assert [len(b.guards) for b in ByType(VERSIONS, told=True).program(narrow).restriction.branches] == [1, 1, 1]


def test_policy_files_name_agreements(tmp_path: Path) -> None:
    for name, one in signed_types(told=True).items():
        (tmp_path / f"{name.name}.type").write_bytes(one.to_bytes())
    signed = sign_value(agreement(*RULES, LAST), OWNING)
    (tmp_path / "plant.agreement").write_bytes(canonical(statements_to_sexp([signed, *PROFILES])))
    text = 'types = ["*.type"]\nagreements = ["plant.agreement"]\n'
    (tmp_path / "policy.toml").write_text(text)
    loaded = load_policy(str(tmp_path / "policy.toml"), NOW)
    (rules,) = loaded.agreements.rules
    assert rules.agreement == signed.value
    assert set(rules.known) == {P1, P2, ANN, BOB}
    assert P3 in loaded.principals()
    bare = replace(loaded, agreements=Agreements())
    assert len({loaded.revision, bare.revision}) == 2
    assert loaded.of_brokers().agreements == Agreements()
    # What its owner did not sign, or another one under the same name.
    other = sign_value(agreement(), OWNING)
    for data, code in (
        (replace(signed, signature=bytes(64)).to_bytes(), "key.bad-signature"),
        (canonical(statements_to_sexp([signed, other])), "policy.twice"),
        (b"(other)", "evolution.malformed"),
        (sign_value(agreement(), key(1)).to_bytes()[:-3], "sexp.truncated"),
    ):
        (tmp_path / "plant.agreement").write_bytes(data)
        with refused(code, "sexp.syntax", "sexp.end"):
            load_policy(str(tmp_path / "policy.toml"), NOW)
