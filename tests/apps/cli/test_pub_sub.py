"""`penstock pub` and `penstock sub` with a broker between them."""

import json
import re
from collections.abc import Iterator

import pytest
from tests.apps.conftest import NOW, Shell
from tests.apps.node_kit import LONGEST, TYPE, Running, ask, lay_out, node_file, running, start

from penstock.apps.cli.shared.events import EventDraft, Unreadable, of_lines


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a shell in a folder with a network in it."""
    shell = Shell(tmp_path_factory.mktemp("network"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shell.folder)
        patch.delenv("PENSTOCK_NAMES", raising=False)
        lay_out(shell)
        yield shell


@pytest.fixture(scope="module")
def broker(network: Shell) -> Iterator[Running]:
    """Run one broker."""
    with running(network, node_file(network)) as found:
        yield found


def test_as_processes(network: Shell, broker: Running) -> None:
    with start(
        network, broker, "reader", "sub", "--type", TYPE, "--where", "speed > 10", "--count", "2", "--restrictions"
    ) as reader:
        assert reader.stderr is not None
        assert reader.stderr.readline() == "subscribed to org.london.Sighting@0\n"
        with start(network, broker, "camera", "pub", "--type", TYPE, "--file", "-", "-o", "json") as writer:
            # A line goes out when it is written, and not when there are enough of them.
            assert writer.stdin is not None
            for speed in (5, 31):
                writer.stdin.write(json.dumps({"speed": speed, "plate": "P"}) + "\n")
            writer.stdin.flush()
            assert reader.stdout is not None
            lines: list[str] = []
            while not lines or "31" not in lines[-1]:
                lines.append(reader.stdout.readline())
                assert lines[-1]
            out, err = writer.communicate('{"speed": 77, "at": "2026-05-01T12:00:00Z"}\n', timeout=LONGEST)
        assert (writer.returncode, err) == (0, "")
        assert (json.loads(out)["accepted"], json.loads(out)["refused"]) == (3, 0)
        rest, _ = reader.communicate(timeout=LONGEST)
        assert reader.returncode == 0
    heading = lines[-2].split()
    assert heading == ["time", "plate", "speed", "at"]
    assert (lines[-1].split()[1:], rest.split()[1:]) == (["-", "31", "-"], ["-", "77", "-"])
    assert "granted" in lines[0]
    assert any(line.startswith("missing") and line.rstrip().endswith(": plate, at") for line in lines)


def test_one_event(network: Shell, broker: Running) -> None:
    words = ("speed=31", "at=2026-05-01T12:00Z", "plate=", "--subscriber-timeout", "0.1")
    ran = ask(network, broker, "camera", "pub", "--type", TYPE, *words)
    # Of one event there is no rate.
    assert (ran.status, ran.out) == (0, "1 accepted, 0 refused\n")
    assert "pub.unwanted" in ran.err


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("speed=fast",), "value.malformed", 2),
        (("colour=red",), "event.unknown-attribute", 2),
        (("speed",), "cli.pair", 2),
        (("speed=1", "speed=2"), "cli.twice", 2),
        (("speed=1", "--file", "-"), "cli.usage", 2),
    ],
)
def test_one_event_that_is_none(
    network: Shell, broker: Running, words: tuple[str, ...], code: str, status: int
) -> None:
    ran = ask(network, broker, "camera", "pub", "--type", TYPE, "--subscriber-timeout", "0", *words)
    assert (ran.code, ran.status) == (code, status)
    if code == "value.malformed":
        assert "`fast` is not a value of `speed`, which is of kind integer" in ran.err


def test_who_may_not_publish(network: Shell, broker: Running) -> None:
    ran = ask(network, broker, "reader", "pub", "--type", TYPE, "speed=31")
    assert (ran.code, ran.status) == ("broker.not-permitted", 1)


def test_what_is_refused_is_counted_by_code(network: Shell, broker: Running) -> None:
    lines = [
        '{"speed": 1}',
        '{"speed": "fast"}',
        "nonsense",
        "",
        '{"speed": 1, "speed": 2}',
        f'{{"specversion": "1.0", "id": "1", "type": "{TYPE}", "data": {{"speed": 3}}}}',
        '{"specversion": "1.0", "id": "2", "type": "london/org.london.None", "data": {}}',
        '{"specversion": "1.0", "id": "3", "data": {}}',
        '{"speed": [1]}',
    ]
    ran = ask(
        network,
        broker,
        "camera",
        "pub",
        "--type",
        TYPE,
        "--wait",
        "0",
        "--file",
        "-",
        "-o",
        "json",
        stdin="\n".join(lines),
    )
    assert ran.status == 1
    assert ran.json["accepted"] == 2
    assert ran.json["codes"] == {"broker.unknown-type": 1, "pub.line": 3, "value.kind": 2}
    assert [problem["event"] for problem in ran.json["problems"]] == [2, 3, 5, 7, 8, 9]
    shown = ask(
        network,
        broker,
        "camera",
        "pub",
        "--type",
        TYPE,
        "--subscriber-timeout",
        "0",
        "--file",
        "-",
        stdin="\n".join(lines),
    )
    assert shown.out.startswith("2 accepted, 6 refused")
    assert "pub.line" in shown.out


def test_thousands_of_events_in_order(network: Shell, broker: Running) -> None:
    number = 2_000
    lines = "".join(f'{{"speed": {speed}}}\n' for speed in range(number))
    with start(
        network, broker, "reader", "sub", "--type", TYPE, "--count", str(number), "--timeout", "60", "-o", "json"
    ) as reader:
        assert reader.stderr is not None
        reader.stderr.readline()
        (network.folder / "many.jsonl").write_text(lines)
        ran = ask(network, broker, "camera", "pub", "--type", TYPE, "--file", "many.jsonl")
        assert re.match(r"2,000 accepted, 0 refused, [0-9,]+ events/s", ran.out)
        out, _ = reader.communicate(timeout=LONGEST)
    assert [json.loads(line)["data"]["speed"] for line in out.splitlines()] == list(range(number))


def test_none_comes_in_time(network: Shell, broker: Running) -> None:
    ran = ask(network, broker, "reader", "sub", "--type", TYPE, "--timeout", "0.2", "--count", "1", "-o", "json")
    assert (ran.status, ran.out) == (3, "")
    assert "sub.timeout" in ran.err
    ran = ask(network, broker, "reader", "sub", "--type", TYPE, "--timeout", "0.2")
    assert (ran.status, ran.out.split()) == (0, ["time", "plate", "speed", "at"])


def test_the_environment_gives_defaults(network: Shell, broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", broker.url)
    monkeypatch.setenv("PENSTOCK_NETWORK", "london/London")
    monkeypatch.setenv("PENSTOCK_KEY", "camera.key")
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", "certs/camera.cert:certs/publish.cert")
    assert network("pub", "--type", TYPE, "speed=1", "--subscriber-timeout", "0").status == 0
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", "certs/nothing.cert")
    assert network("pub", "--type", TYPE, "speed=1", "--subscriber-timeout", "0").code == "file.missing"


def test_another_broker_than_the_one_that_is_meant(network: Shell, broker: Running) -> None:
    ran = ask(network, broker, "camera", "pub", "--type", TYPE, "--broker-principal", "west", "speed=1")
    assert ran.status == 1
    assert ran.code.startswith("handshake.")


def test_nobody_is_there(network: Shell) -> None:
    where = ("--broker", "penstock://127.0.0.1:1", "--network", "london/London", "--key", "camera.key")
    ran = network("pub", "--type", TYPE, "speed=1", *where)
    assert (ran.code, ran.status) == ("link.unreachable", 3)


def test_lines_are_cloud_events_or_plain() -> None:
    event = b'{"specversion":"1.0","id":"7","type":"a/b@1","time":"2026-05-01T12:00:00Z","data":{"x":1}}'
    found = dict(of_lines([b'{"x":1}', b"\r", event, b"[]"], 5))
    assert found[5] == EventDraft({"x": 1})
    assert found[7] == EventDraft({"x": 1}, "a/b@1", "7", NOW)
    assert isinstance(found[8], Unreadable)
    assert 6 not in found
