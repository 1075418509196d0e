"""How the session of a command is set, wherever Spark runs."""

import pytest

from penstock.apps.cli import pipeline_spark
from penstock.apps.cli.pipeline_spark import Cluster
from penstock.pipeline.session_settings import EVERYWHERE, LOCAL


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
