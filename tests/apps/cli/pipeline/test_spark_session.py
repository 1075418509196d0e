"""How the session of a command is set, wherever Spark runs."""

from pathlib import Path

import pytest

from penstock.apps.cli.pipeline import spark_session as pipeline_spark
from penstock.apps.cli.pipeline.spark_session import Cluster
from penstock.pipeline.jobs.session_settings import EVERYWHERE, LOCAL, SMALL, SMALL_INPUT


def settings(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    return dict(pipeline_spark._builder(cluster, {})._options)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]"])
def test_on_one_machine_a_session_has_what_is_best_there(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(Cluster(master), monkeypatch)
    assert (EVERYWHERE | LOCAL).items() <= found.items()
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
    assert found["spark.driver.host"] == "127.0.0.1"


def test_whoever_sets_something_else_has_that(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOCAL:
        found = settings(Cluster(conf={name: "mine"}), monkeypatch)
        assert found[name] == "mine"
        assert {other: found[other] for other in LOCAL if other != name} == {
            other: value for other, value in LOCAL.items() if other != name
        }


def test_a_cluster_is_set_by_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(Cluster("spark://there:7077"), monkeypatch)
    assert EVERYWHERE.items() <= found.items()
    assert not LOCAL.keys() & found.keys()
    assert not (EVERYWHERE | LOCAL).keys() & settings(Cluster(remote="sc://there:15002"), monkeypatch).keys()


def test_what_spark_submit_was_told_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not LOCAL.keys() & dict(pipeline_spark._builder(Cluster(), {})._options).keys()


def test_a_small_input_does_not_pay_for_what_speeds_up_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"{}")
    large.write_bytes(bytes(SMALL_INPUT + 1))

    def found(cluster: Cluster, reads: Path | None) -> dict[str, str]:
        also = pipeline_spark._small(cluster, None if reads is None else str(reads))
        return dict(pipeline_spark._builder(cluster, also)._options)

    assert SMALL.items() <= found(Cluster(), small).items()
    assert LOCAL.keys() <= found(Cluster(), small).keys()
    for other in (large, None):
        assert LOCAL.items() <= found(Cluster(), other).items()
        assert "spark.sql.codegen.wholeStage" not in found(Cluster(), other)
    # Whoever sets something has that; a cluster is set by its operator.
    assert found(Cluster(conf={"spark.sql.shuffle.partitions": "7"}), small)["spark.sql.shuffle.partitions"] == "7"
    for away in (Cluster("spark://there:7077"), Cluster(remote="sc://there:15002")):
        assert not SMALL.keys() & found(away, small).keys()
