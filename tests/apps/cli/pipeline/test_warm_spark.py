"""`penstock pipeline serve` and the note by which commands find it."""

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import java
from tests.pipeline.jobs_plant import build, write_events

from penstock.apps.cli.pipeline import warm_spark
from penstock.apps.cli.pipeline.spark_session import Cluster
from penstock.apps.cli.pipeline.warm_spark import ALONE, find_warm_spark, note_path, noted
from penstock.errors import RefusedError
from penstock.pipeline.jobs.session_settings import INTERPRETED


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(ALONE, raising=False)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_warm_spark_is_found_while_it_is_noted(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_warm_spark() is None
    with noted(port, "s3cret") as warm:
        assert find_warm_spark() == warm
        assert stat.S_IMODE(note_path().stat().st_mode) == 0o600
        assert "s3cret" not in repr(warm)
        assert warm.url == f"sc://localhost:{port}/;token=s3cret"
        with pytest.raises(RefusedError) as refused, noted(port, "other"):
            pass
        assert refused.value.code == "pipeline.serving"
        monkeypatch.setenv(ALONE, "1")
        assert find_warm_spark() is None
    assert not note_path().exists()


def test_a_note_that_is_not_ours_or_of_a_server_that_is_gone_is_ignored(port: int) -> None:
    with noted(port, "s3cret"):
        path, good = note_path(), note_path().read_bytes()
        path.chmod(0o644)
        assert find_warm_spark() is None, "others can read the secret"
        path.chmod(0o600)
        for bad in (b"", b"{}", good[:-2], good.replace(b'"process"', b'"other"')):
            path.write_bytes(bad)
            assert find_warm_spark() is None
        from penstock import __version__  # noqa: PLC0415  # the text in the note

        path.write_bytes(good.replace(__version__.encode(), b"0.0.0"))
        assert find_warm_spark() is None
        path.write_bytes(good)
        assert find_warm_spark() is not None
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    with noted(closed, "s3cret"):
        assert find_warm_spark() is None


@pytest.mark.parametrize("beside", [True, False])
def test_the_secret_is_not_shown_to_another_user_who_listens_at_the_port(
    port: int, beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path / "tcp", tmp_path / "tcp6"
    monkeypatch.setattr(warm_spark, "_SOCKETS", tables)

    def write(*listeners: tuple[str, int]) -> None:
        lines = [f"0: {at}:{port:04X} 0:0 0A 0:0 00:0 0 {user} 0 1" for at, user in listeners]
        tables[1].write_text("\n".join(["sl local_address", *lines, f"1: 0:{port:04X} 0:0 01 0:0 00:0 0 77777 0 1"]))

    own, other = ("FFFF00000100007F", os.getuid()), ("01000000", os.getuid() + 1)
    with noted(port, "s3cret"):
        write(own)
        assert find_warm_spark() is not None
        write(*([own, other] if beside else [other]))
        assert find_warm_spark() is None


def test_a_command_that_chooses_its_spark_does_not_use_the_warm_one() -> None:
    assert Cluster().unchosen
    assert Cluster(conf={}).unchosen
    for chosen in (Cluster("local[1]"), Cluster(remote="sc://x"), Cluster(conf={"a": "b"}), Cluster(log="x")):
        assert not chosen.unchosen


@pytest.mark.java
def test_commands_use_the_spark_that_is_kept(tmp_path: Path) -> None:
    policy = build(tmp_path / "plant")
    write_events(tmp_path / "in" / "0.jsonl", range(12))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": java.options(INTERPRETED)}
    program = [str(Path(sys.executable).with_name("penstock")), "pipeline"]
    with subprocess.Popen(
        [*program, "serve", "--master", "local[1]"], env=environment, stdout=subprocess.PIPE, text=True
    ) as keeper:
        try:
            assert keeper.stdout is not None
            assert "Spark is ready" in keeper.stdout.readline()
            # Where a command would have to start a Java of its own, it fails.
            found = {**environment, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
            done = subprocess.run(
                [*program, "ingest", "in", "--policy", str(policy), "--out", "ingested"],
                env=found,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert "12 records = 11 events + 1 in quarantine" in done.stdout
            assert "token" not in done.stdout + done.stderr
        finally:
            keeper.send_signal(signal.SIGTERM)
    assert keeper.returncode == 0
    assert not note_path().exists()
