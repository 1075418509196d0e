"""Node files: strict, and every error names the file, the key, and what to do."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import lay_out, node_file

from penstock.apps.node.config import Brokers, FabricKind, LogKind, NatsFile, Stamps, read_node_file
from penstock.apps.node.load import find_kek
from penstock.broker.evolution.policy_keeper import StampSettings
from penstock.broker.sealing.blocks import LINGERING
from penstock.codec.blocks import Padding
from penstock.crypto.aead import CipherAlgorithm
from penstock.crypto.passphrases import Cost
from penstock.crypto.sealer import SealerSettings
from penstock.crypto.wrapping import new_kek, protect_kek
from penstock.errors import MalformedError, PenstockError
from penstock.store.files.key_files import create_kek

LEAST = 'network = "a/N"\nkey = "k"\nlisten = "[::1]:7600"\n'

ON_NATS = '[nats]\nservers = ["h"]\ntls_ca = "ca"\n[fabric]\nkind = "nats"\nplaintext = "unsafe"\ndurable = 5\n'


def test_the_least_that_a_file_says() -> None:
    found = read_node_file(LEAST)
    assert (found.listen.host, found.listen.port, found.http) == ("::1", 7600, None)
    assert (found.decisions, found.state, found.brokers) == ("decisions.jsonl", "state", Brokers.ROUTE_RIGHT)


def test_a_file_of_a_broker_on_nats() -> None:
    found = read_node_file(LEAST + ON_NATS)
    assert (found.fabric.kind, found.fabric.durable) == (FabricKind.NATS, 5.0)
    assert found.nats == NatsFile(servers=("nats://h:4222",), files={"tls_ca": "ca"})


def test_limits_are_those_that_are_written_and_the_defaults() -> None:
    found = read_node_file(LEAST + "[limits]\nclient_rate = 7\n").limits.broker
    assert (found.client_rate, found.client_sessions) == (7, 64)


def test_time_stamps_are_required_unless_the_file_says_otherwise() -> None:
    assert read_node_file(LEAST).stamps is Stamps.REQUIRED
    assert read_node_file(LEAST + '[trust]\nstamps = "optional"').stamps is Stamps.OPTIONAL


def test_time_stamps_are_signed_as_the_file_says() -> None:
    assert read_node_file(LEAST).issued == StampSettings()
    found = read_node_file(LEAST + "[stamps]\nperiod = 6\nevery = 2\n").issued
    assert (found.period, found.every) == (timedelta(seconds=6), timedelta(seconds=2))


def test_events_linger_as_the_file_says() -> None:
    assert read_node_file(LEAST).sealing == LINGERING
    found = read_node_file(LEAST + "[sealing]\nlinger = 0\nevents = 7\n").sealing
    assert (found.linger, found.events) == (timedelta(), 7)


def test_blocks_are_sealed_as_the_file_says() -> None:
    assert read_node_file(LEAST).seals == SealerSettings()
    found = read_node_file(LEAST + '[sealing]\nalgorithm = "aes-gcm-siv"\npadding = "sizes"\n').seals
    assert found == SealerSettings(CipherAlgorithm.AES_GCM_SIV, Padding.SIZES)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("= 1", "node.syntax", "TOML"),
        (LEAST + "colour = 1", "node.unknown-key", "`colour`"),
        (LEAST + "[trust]\nbroker = 1", "node.unknown-key", "`broker`"),
        (LEAST + '[trust]\nbrokers = "all"', "node.value", "`trust.brokers`"),
        (LEAST + '[trust]\nstamps = "owner"', "node.value", "`trust.stamps`"),
        (LEAST + "[stamps]\nfor = 30", "node.unknown-key", "`for`"),
        (LEAST + "[stamps]\nperiod = 1", "node.value", "`stamps.period`"),
        (LEAST + "[stamps]\nperiod = true", "node.value", "`stamps.period`"),
        (LEAST + "[stamps]\nevery = 20", "node.value", "`stamps.every`"),
        (LEAST + "[stamps]\nevery = 0.5", "node.value", "`stamps.every`"),
        (LEAST + "[sealing]\nlinger = 2", "node.value", "`sealing.linger`"),
        (LEAST + "[sealing]\nevents = 0", "node.value", "`sealing.events`"),
        (LEAST + "[sealing]\nevent = 1", "node.unknown-key", "`event`"),
        (LEAST + '[sealing]\nalgorithm = "rot13"', "node.value", "`sealing.algorithm`"),
        (LEAST + "[sealing]\npadding = [1]", "node.value", "`sealing.padding`"),
        (LEAST + 'fabric = "pigeons"', "node.value", "`fabric`"),
        ('network = "a/N"\nlisten = "h:1"', "node.missing", "`key`"),
        (LEAST + 'http = "7680"', "node.value", "`http`"),
        (LEAST + 'http = "::1:7680"', "node.value", "`http`"),
        (LEAST + 'http = "h:70000"', "node.value", "`http`"),
        (LEAST + 'peers = ["h:1"]', "node.value", "`peer 1`"),
        (LEAST + '[[peers]]\nprincipal = "p"', "node.missing", "`address`"),
        (LEAST + '[nats]\nservers = ["h"]\n[[peers]]', "node.missing", "`address`"),
        (LEAST + "[nats]", "node.missing", "`servers`"),
        (LEAST + "[nats]\nservers = []", "node.value", "`nats.servers`"),
        (LEAST + '[nats]\nservers = ["nats://u:secret@h"]', "node.value", "`nats.servers`"),
        (LEAST + '[nats]\nservers = ["h"]\nlisten = 1', "node.value", "`nats.listen`"),
        (LEAST + '[fabric]\nkind = "pigeons"', "node.value", "`fabric.kind`"),
        (LEAST + '[fabric]\nkind = "kafka"', "node.missing", "`address`"),
        (LEAST + '[fabric]\nkind = "kafka"\naddress = "kafka://me:secret@h"', "node.value", "`fabric.address`"),
        (LEAST + '[fabric]\nkind = "kafka"\naddress = "kafka://h/topic"', "node.value", "`fabric.address`"),
        (LEAST + '[fabric]\nkind = "routed"\naddress = "kafka://h"', "node.value", "`fabric.address`"),
        (LEAST + '[fabric]\nkind = "nats"', "node.missing", "`[nats]`"),
        (LEAST + '[fabric]\nkind = "nats"\ndurable = -1', "node.value", "`fabric.durable`"),
        (LEAST + '[fabric]\nkind = "nats"\nplaintext = "yes"', "node.value", "`fabric.plaintext`"),
        (LEAST + ON_NATS + '[[peers]]\naddress = "h:1"', "node.peers", "cannot have peers"),
        (LEAST + '[[peers]]\naddress = "h:0"', "node.value", "`peer 1: address`"),
        (LEAST + '[[peers]]\naddress = "h:1"\n[[peers]]\naddress = "h:1"', "node.value", "`peer 2: address`"),
        (LEAST + 'credentials = "certs"', "node.value", "`credentials`"),
        (LEAST + 'agreements = "rules"', "node.value", "`agreements`"),
        (LEAST + 'zone = "Mars"', "node.value", "`zone`"),
        (LEAST + "[facts]\nhour = 1", "environment.reserved", "`hour`"),
        (LEAST + "[facts]\nlist = [1]", "node.value", "`facts.list`"),
        (LEAST + "domains = 1", "node.value", "`domains`"),
        (LEAST + "[domains]\nops = 1", "node.value", "`domains.ops`"),
        (LEAST + f'[domains]\nops = "{"x" * 129}"\n', "node.value", "`domains.ops`"),
        (LEAST + '[guards]\ng = "os.system"', "node.value", "`guards.g`"),
        (LEAST + "[limits]\nclient_rates = 1", "node.unknown-key", "`client_rates`"),
        (LEAST + "[limits]\nclient_rate = true", "node.value", "`limits.client_rate`"),
        (LEAST + "[limits]\nclient_rate = 0", "node.value", "`limits.client_rate`"),
        (LEAST + "[limits]\nnetwork_links = 257", "node.value", "`limits.network_links`"),
        (LEAST + "[limits]\nselector_length = 1", "node.fixed-limit", "`limits.selector_length`"),
    ],
)
def test_what_is_wrong_is_named(text: str, code: str, words: str) -> None:
    with pytest.raises(MalformedError) as error:
        read_node_file(text)
    assert error.value.code == code
    assert words in error.value.message
    assert error.value.hint


@pytest.fixture
def network(penstock: Shell) -> Shell:
    """Return a shell in a folder with a network in it."""
    lay_out(penstock)
    return penstock


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ('"london/London"', '"paris/London"', "node.principal"),
        ('"london/London"', '"London"', "name.malformed"),
        ('["ops"]', '["nobody"]', "node.principal"),
        ('["certs/"]', '["nothing/*.cert"]', "node.no-match"),
        ('["certs/"]', '["none.cert"]', "file.missing"),
        ('["types/*.type"]', '["certs/"]', "type.malformed"),
        ('decisions = "', 'decisions = "nowhere/', "file.unwritable"),
        ('state = "', 'state = "nowhere/', "file.unwritable"),
        ("[trust]", '[nats]\nservers = ["h"]\ntoken_file = "none"\n[trust]', "file.missing"),
        ("[trust]", '[guards]\ng = "nowhere.at.all:guard"\n[trust]', "node.guard"),
        ("[trust]", '[guards]\ng = "os:sep"\n[trust]', "node.guard"),
        ("[trust]", '[[peers]]\naddress = "h:1"\nprincipal = "nobody"\n[trust]', "node.principal"),
        ("[trust]", '[domains]\nnobody = "Nowhere"\n[trust]', "node.principal"),
        ('"names.toml"', '"other.toml"', "file.missing"),
    ],
)
def test_what_a_file_names_is_looked_for(network: Shell, before: str, after: str, code: str) -> None:
    file = network.folder / node_file(network)
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after, 1))
    ran = network("up", "--check", "east.toml")
    assert ran.code == code
    assert ran.status != 0


def test_paths_are_relative_to_the_file(network: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node_file(network)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    network.ok("up", "--check", "../east.toml")


def test_types_may_stand_in_any_order(network: Shell) -> None:
    network.ok(
        *("type", "new", "org.london.A", "--key", "london.key", "--extends", "types/s.type"),
        *("--out", "types/a.type"),
    )
    ran = network.ok("up", "--check", node_file(network), "-o", "json")
    assert ran.json["types"] == 2


def test_a_type_that_was_changed_is_refused(network: Shell) -> None:
    file = network.folder / "types" / "s.type"
    file.write_bytes(file.read_bytes().replace(b"speed", b"Speed"))
    ran = network("up", "--check", node_file(network))
    assert ran.status != 0
    assert "s.type" in ran.err


def test_a_type_that_somebody_else_signed_is_refused(network: Shell) -> None:
    forged = ("--key", "camera.key", "--owner", "london", "--unchecked", "--out", "types/f.type")
    network.ok("type", "new", "org.london.Forged", *forged)
    ran = network("up", "--check", node_file(network))
    assert (ran.status, ran.code[:5]) == (1, "type.")
    assert "f.type" in ran.err


def test_a_guard_is_a_function(network: Shell) -> None:
    more = '[guards]\neven = "tests.apps.node.test_config:even"'
    network.ok("up", "--check", node_file(network, more=more))


def even(values: dict[str, object], _environment: object) -> bool:
    return values["speed"] == 2


def test_a_file_of_a_key_manager() -> None:
    found = read_node_file(LEAST + '[keys]\nkek = "k"\nepoch_seconds = 60\nreplicas = ["r"]\n').keys
    assert found is not None
    assert (found.log, found.kek, found.replicas) == (LogKind.FILE, "k", ("r",))
    assert (found.refreshing.period, found.refreshing.longest) == (60_000, 86_400_000)


@pytest.mark.parametrize(
    ("table", "code", "words"),
    [
        ("", "node.missing", "`kek`"),
        ('kek = "k"\nlogs = "file"', "node.unknown-key", "`logs`"),
        ('kek = "k"\nlog = "etcd"', "node.value", "`keys.log`"),
        ('kek = "k"\nlog = "nats"', "node.missing", "`[nats]`"),
        ('kek = "k"\nname = "a.b"', "node.value", "`keys.name`"),
        ('kek = "k"\ncopies = 0', "node.value", "`keys.copies`"),
        ('kek = "k"\nepoch_seconds = 1.5', "node.value", "`keys.epoch_seconds`"),
        ('kek = "k"\nlongest_seconds = 60', "node.value", "`keys.longest_seconds`"),
        ('kek = "k"\nepoch_blocks = 99999999999', "node.value", "`keys.epoch_blocks`"),
    ],
)
def test_what_is_wrong_about_a_key_manager(table: str, code: str, words: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read_node_file(f"{LEAST}[keys]\n{table}")
    assert caught.value.code == code
    assert words in caught.value.message


def test_where_a_key_encryption_key_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kek = new_kek(lambda size: bytes(range(size)))
    create_kek(tmp_path / "a.kek", kek)
    monkeypatch.setenv("A_KEK", (tmp_path / "a.kek").read_text())
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for word in ("a.kek", "env:A_KEK", "credential:a.kek"):
        assert find_kek(word, tmp_path) == kek
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    monkeypatch.setenv("B_KEK", "(kek)")
    protected = protect_kek(kek, b"secret", bytes, Cost(1, 8 << 10))
    create_kek(tmp_path / "b.kek", protected)
    monkeypatch.setenv("C_KEK", (tmp_path / "b.kek").read_text())
    codes = {
        "none.kek": "file.missing",
        "env:NONE": "keys.no-kek",
        "env:B_KEK": "keys.kek",
        "env:C_KEK": "keys.kek-passphrase",
        "b.kek": "keys.kek-passphrase",
        "credential:a.kek": "keys.no-kek",
    }
    for word, code in codes.items():
        with pytest.raises(PenstockError) as caught:
            find_kek(word, tmp_path)
        assert caught.value.code == code, word
