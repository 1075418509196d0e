"""`penstock seal` and `penstock open`: events of a file under keys, and back; what does not open is reported."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.apps.conftest import NOW, Ran, Shell
from tests.spoiled import flipped

from penstock.codec.blocks import read_block
from penstock.crypto.keys import KEY_BYTES
from penstock.crypto.passphrases import Cost
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret, protect_kek
from penstock.store.files.key_files import create_kek, read_kek, read_key_ring, write_key_ring
from penstock.store.files.sealed_files import QuarantineFolder, read_sealed

EVENTS: list[dict[str, object]] = [
    {"plate": "ABC123", "speed": 31, "at": "2026-05-01T12:00:00Z"},
    {"plate": "XYZ789", "speed": None, "at": None},
    {"plate": None, "speed": 77, "at": None},
]
LINES = "\n".join(json.dumps(event) for event in EVENTS)
TYPE = ("--type-file", "sighting.type")
KEYS = (*TYPE, "--ring", "all.ring", "--kek", "ring.kek")
_MADE: dict[str, bytes] = {}


@pytest.fixture
def shell(penstock: Shell) -> Shell:
    """Return a shell in a folder with a type, keys for it, and events."""
    if not _MADE:
        _make(penstock)
        _MADE.update({path.name: path.read_bytes() for path in penstock.folder.iterdir()})
    for name, data in _MADE.items():
        (penstock.folder / name).write_bytes(data)
    return penstock


def _make(shell: Shell) -> None:
    for who in ("owner", "broker"):
        shell.ok("key", "new", f"{who}.key", "--name", who)
    attributes = [word for name in ("plate:string", "speed:integer", "at:timestamp") for word in ("--attribute", name)]
    for file, level in (("sighting", "attribute"), ("whole", "event"), ("open", "none")):
        name = f"org.london.{file.capitalize()}"
        shell.ok("type", "new", name, "--key", "owner.key", *attributes, "--seal", level, "--out", f"{file}.type")
    shell.ok("sealing", "new-kek", "ring.kek")
    shell.ok("sealing", "new-kek", "other.kek")
    types = ("--type-file", "sighting.type", "--type-file", "whole.type", "--type-file", "open.type")
    shell.ok("sealing", "new-ring", "all.ring", "--kek", "ring.kek", *types)
    (shell.folder / "events.jsonl").write_text(LINES)
    shell.ok("seal", "events.jsonl", *KEYS, "--key", "broker.key", "--rows", "2", "--out", "events.sealed")


def opened(ran: Ran) -> list[Any]:
    return [json.loads(line) for line in ran.out.splitlines()]


def cut_ring(keep: str, epoch: int | None = None) -> None:
    """Write a ring that holds the keys of the type and of one attribute, perhaps as those of another epoch."""
    kek, cut = read_kek(Path("ring.kek")), KeyRing()
    for scope, found, key in read_key_ring(Path("all.ring"), kek).items():
        if "#" not in scope or scope.endswith(keep):
            cut.put(scope, epoch or found, key)
    write_key_ring(Path("cut.ring"), cut, kek, bytes)


def test_there_and_back(shell: Shell) -> None:
    ran = shell.ok("open", "events.sealed", *KEYS, "--verify", "-o", "json")
    assert [event["data"] for event in opened(ran)] == EVENTS
    assert {event["time"] for event in opened(ran)} == {"2026-05-01T12:00:00Z"}
    assert len({event["id"] for event in opened(ran)}) == 3
    assert "opened 3 events, 2 blocks" in ran.err
    assert "signed by broker: 2 blocks" in ran.err
    # What was opened can be sealed again: ids and times stay.
    again = shell("seal", "-", *KEYS, "--sender", "broker", "--pad", "sizes", stdin=ran.out)
    assert again.status == 0, again.err
    Path("again.sealed").write_bytes(again.raw)
    assert shell.ok("open", "again.sealed", *KEYS, "-o", "json").out == ran.out


def test_sealed_is_not_readable(shell: Shell) -> None:
    sealed = Path("events.sealed").read_bytes()
    assert b"ABC123" not in sealed
    assert sealed != shell("seal", "events.jsonl", *KEYS, "--key", "broker.key", "--rows", "2").raw


def test_files_of_blinded_types_do_not_say_what_they_are(shell: Shell) -> None:
    made = ("--attribute", "plate:string", "--seal", "attribute", "--blinded")
    shell.ok("type", "new", "org.london.Hidden", "--key", "owner.key", *made, "--out", "hidden.type")
    keys = ("--type-file", "hidden.type", "--ring", "hidden.ring", "--kek", "ring.kek")
    shell.ok("sealing", "new-ring", "hidden.ring", "--kek", "ring.kek", "--type-file", "hidden.type")
    Path("hidden.sealed").write_bytes(shell("seal", "-", *keys, "--key", "broker.key", stdin='{"plate": "ABC"}').raw)
    assert b"Hidden" not in Path("hidden.sealed").read_bytes()
    assert opened(shell.ok("open", "hidden.sealed", *keys, "--verify", "-o", "json"))[0]["data"] == {"plate": "ABC"}
    kek, cut = read_kek(Path("ring.kek")), KeyRing()
    for scope, epoch, key in read_key_ring(Path("hidden.ring"), kek).items():
        if not scope.endswith(" labels"):
            cut.put(scope, epoch, key)
    write_key_ring(Path("hidden.ring"), cut, kek, bytes)
    assert "seal.unknown-label" in shell("open", "hidden.sealed", *keys).err
    again = shell("seal", "-", *keys, "--sender", "broker", stdin='{"plate": "ABC"}')
    assert (again.code, again.raw) == ("seal.unknown-label", b"")


def test_events_that_have_to_be_signed_are(shell: Shell) -> None:
    keys = ("--type-file", "pledge.type", "--ring", "pledge.ring", "--kek", "ring.kek")
    define = ("type", "new", "org.london.Pledge", "--key", "owner.key", "--attribute", "plate:string")
    shell.ok(*define, "--seal", "attribute", "--out", "pledge.type")
    shell.ok("sealing", "new-ring", "pledge.ring", "--kek", "ring.kek", "--type-file", "pledge.type")
    line = '{"plate": "ABC"}'
    Path("two.sealed").write_bytes(shell("seal", "-", *keys, "--sender", "broker", stdin=line).raw)
    shell.ok(*define, "--seal", "attribute", "--signed", "--overwrite", "--out", "pledge.type")
    refused = shell("seal", "-", *keys, "--sender", "broker", stdin=line)
    assert (refused.code, refused.raw) == ("seal.unsigned", b"")
    with Path("two.sealed").open("ab") as stream:
        stream.write(shell("seal", "-", *keys, "--key", "broker.key", stdin=line).raw)
    ran = shell("open", "two.sealed", *keys, "-o", "json")
    # What somebody sealed in the name of another is not shown, though nobody said --verify.
    assert (ran.status, len(opened(ran))) == (1, 1)
    assert "two.sealed, block 1: the block is not signed [seal.unsigned]" in ran.err
    assert "signed by broker: 1 block\n" in ran.err


@pytest.mark.parametrize("algorithm", ["aes-gcm", "aes-gcm-siv", "aes-eax"])
def test_event_level_and_other_ciphers(shell: Shell, algorithm: str) -> None:
    keys = ("--type-file", "whole.type", *KEYS[2:])
    words = ("--sender", "broker", "--algorithm", algorithm, "--out", "whole.sealed", "-o", "json")
    assert shell.ok("seal", "events.jsonl", *keys, *words).json["blocks"] == 1
    assert [event["data"] for event in opened(shell.ok("open", "whole.sealed", *keys, "-o", "json"))] == EVENTS


def test_what_is_sealed_as_a_whole_and_should_not_be_does_not_open(shell: Shell) -> None:
    # Who holds the key of the type, and of no attribute, could do that.
    attributes = [word for name in ("plate:string", "speed:integer", "at:timestamp") for word in ("--attribute", name)]
    words = ("--key", "owner.key", *attributes, "--seal", "event", "--out", "lie.type")
    shell.ok("type", "new", "org.london.Sighting", *words)
    shell.ok("seal", "events.jsonl", "--type-file", "lie.type", *KEYS[2:], "--sender", "broker", "--out", "lie.sealed")
    ran = shell("open", "lie.sealed", *KEYS)
    assert (ran.status, ran.out) == (1, "")
    assert "[seal.cannot-open]" in ran.err


def test_for_people(shell: Shell) -> None:
    ran = shell.ok("open", "events.sealed", *KEYS)
    heading, first, *_ = ran.out.splitlines()
    assert heading.split() == ["time", "plate", "speed", "at"]
    assert first.split() == ["2026-05-01T12:00:00.000Z", "ABC123", "31", "2026-05-01T12:00:00Z"]
    assert "signed by broker: 2 blocks" in ran.err
    shell.ok("seal", "events.jsonl", *KEYS, "--sender", "broker", "--out", "unsigned.sealed")
    assert "sealed in the name of broker: 1 block" in shell.ok("open", "unsigned.sealed", *KEYS).err


def test_an_attribute_without_a_key_is_null_and_named(shell: Shell) -> None:
    cut_ring("#1")
    ran = shell.ok("open", "events.sealed", *TYPE, "--ring", "cut.ring", "--kek", "ring.kek", "-o", "json")
    assert [event["data"] for event in opened(ran)] == [event | {"plate": None, "at": None} for event in EVENTS]
    assert "no key for plate: 1 block\n" in ran.err


def test_files_are_put_together_and_a_block_that_comes_twice_is_shown_once(shell: Shell) -> None:
    once = Path("events.sealed").read_bytes()
    Path("both.sealed").write_bytes(once + once)
    ran = shell.ok("open", "both.sealed", "events.sealed", *KEYS, "--out", "both.jsonl", "-o", "json").json
    assert (ran["events"], ran["repeated"], ran["file"]) == (3, 4, "both.jsonl")
    assert len(Path("both.jsonl").read_text().splitlines()) == 3
    assert Path("both.jsonl").stat().st_mode & 0o777 == 0o600


def test_several_types_in_one_file(shell: Shell) -> None:
    owner = shell.ok("key", "show", "owner.key", "-o", "json").json["principal"]
    event = {"specversion": "1.0", "id": "1", "type": f"{owner}/org.london.Whole@0", "data": {"plate": "W"}}
    mixed = f"{LINES}\n{json.dumps(event)}\n\n"
    keys = (*KEYS, "--type-file", "whole.type")
    shell.ok("seal", "-", *keys, "--sender", "broker", "--out", "mixed.sealed", stdin=mixed)
    ran = shell.ok("open", "mixed.sealed", *keys, "-o", "json")
    assert sorted(event["type"].rpartition(".")[2] for event in opened(ran)) == ["Sighting@0"] * 3 + ["Whole@0"]
    partly = shell("open", "mixed.sealed", *KEYS, "-o", "json")
    assert (partly.status, len(opened(partly))) == (1, 3)
    assert "[seal.unknown-type]" in partly.err


def damaged(how: str) -> bytes:
    whole = Path("events.sealed").read_bytes()
    first = 4 + int.from_bytes(whole[:4], "big")
    match how:
        case "flipped":
            return flipped(whole, first - 1)
        case "short tag":
            block = whole[4 : first - 1]
            return len(block).to_bytes(4, "big") + block + whole[first:]
        case "cut":
            return whole[:-5]
        case _:
            return whole[:first] + b"more"


@pytest.mark.parametrize(
    ("how", "code", "events"),
    [
        ("flipped", "seal.cannot-open", 1),
        ("short tag", "block.malformed", 1),
        ("cut", "seal.truncated", 2),
        ("junk", "seal.file", 2),
    ],
)
def test_what_does_not_open_is_listed_and_the_rest_is_there(shell: Shell, how: str, code: str, events: int) -> None:
    Path("bad.sealed").write_bytes(damaged(how))
    ran = shell("open", "bad.sealed", *KEYS, "--out", "found.jsonl", "-o", "json")
    assert ran.status == 1
    assert (ran.json["codes"], ran.json["problems"][0]["code"]) == ({code: 1}, code)
    assert len(Path("found.jsonl").read_text().splitlines()) == events
    assert json.loads(ran.err)["error"]["code"] == "open.refused"


def test_a_key_of_another_epoch_is_none(shell: Shell) -> None:
    cut_ring("#0", epoch=2)
    ran = shell("open", "events.sealed", *TYPE, "--ring", "cut.ring", "--kek", "ring.kek")
    assert (ran.status, ran.out, ran.code) == (1, "", "open.refused")
    assert ran.err.count("[seal.unknown-key]") == 2


def test_what_a_broker_has_refused_can_be_opened_when_there_are_keys(shell: Shell) -> None:
    with Path("events.sealed").open("rb") as stream:
        blocks = [*read_sealed(stream)]
    folder = QuarantineFolder(Path("quarantine"), 1_000, 1 << 20)
    for block in (*blocks, blocks[0][:-1]):
        folder.keep(NOW, "seal.unknown-key", None, block)
    files = sorted(map(str, Path("quarantine").iterdir()))
    ran = shell("open", *files, *KEYS, "--verify", "-o", "json")
    assert (ran.status, len(opened(ran))) == (1, 3)
    assert f"{files[2]}, block 1: " in ran.err


def test_a_signed_block_is_opened_if_its_signature_is_true_whether_that_was_asked_for_or_not(shell: Shell) -> None:
    shell.ok("seal", "events.jsonl", *KEYS, "--key", "broker.key", "--out", "signed.sealed")
    whole = bytearray(Path("signed.sealed").read_bytes())
    parts = read_block(bytes(whole[4 : 4 + int.from_bytes(whole[:4], "big")]))
    whole[whole.index(parts.signature) + KEY_BYTES] ^= 1
    Path("signed.sealed").write_bytes(whole)
    ran = shell("open", "signed.sealed", *KEYS, "--out", "some.jsonl", "-o", "json")
    assert (ran.status, ran.json["codes"]) == (1, {"seal.bad-signature": 1})


def test_unsigned_blocks_are_not_verified(shell: Shell) -> None:
    shell.ok("seal", "events.jsonl", *KEYS, "--sender", "broker", "--out", "unsigned.sealed")
    ran = shell("open", "unsigned.sealed", *KEYS, "--verify")
    assert (ran.status, ran.out) == (1, "")
    assert "[seal.unsigned]" in ran.err


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "pub.line"),
        ("[]", "pub.line"),
        ('{"colour": "red"}', "event.unknown-attribute"),
        ('{"speed": "fast"}', "value.kind"),
        ('{"specversion": "1.0", "id": "1", "type": "broker/org.london.Other", "data": {}}', "seal.unknown-type"),
    ],
)
def test_a_line_that_is_no_event_stops_it_and_nothing_is_written(shell: Shell, line: str, code: str) -> None:
    before = {path.name for path in shell.folder.iterdir()}
    lines = f"{LINES}\n{line}\n"
    for words in (("--out", "new.sealed"), ()):
        ran = shell("seal", "-", *KEYS, "--sender", "broker", "--rows", "1", *words, stdin=lines)
        assert (ran.code, ran.raw) == (code, b"")
        assert "line 4" in ran.err
    assert {path.name for path in shell.folder.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--sender", "broker", "--key", "broker.key"), "cli.usage"),
        ((), "cli.usage"),
        (("--sender", "broker", "--kek", "other.kek"), "keys.wrong-kek"),
        (("--sender", "broker", "--kek", "owner.key"), "keys.kek"),
        (("--sender", "broker", "--ring", "owner.key"), "keys.ring"),
        (("--sender", "broker", "--type-file", "open.type"), "seal.level"),
        (("--sender", "broker", "--out", "events.sealed"), "file.exists"),
        (("--sender", "broker", "--out", "ring.kek", "--overwrite"), "file.private-key"),
        (("--sender", "nobody"), "principal.unknown"),
    ],
)
def test_wrong_use(shell: Shell, words: tuple[str, ...], code: str) -> None:
    assert shell("seal", "events.jsonl", *KEYS, *words).code == code


def test_a_ring_without_the_keys(shell: Shell) -> None:
    kek = read_kek(Path("ring.kek"))
    ring = KeyRing()
    ring.put("another/type", 1, Secret(bytes(32)))
    write_key_ring(Path("empty.ring"), ring, kek, bytes)
    words = (*TYPE, "--ring", "empty.ring", "--kek", "ring.kek")
    assert shell("seal", "events.jsonl", *words, "--sender", "broker").code == "seal.unknown-key"


def test_rehearsal_and_absence(shell: Shell) -> None:
    ran = shell.ok("seal", "events.jsonl", *KEYS, "--sender", "broker", "--out", "new.sealed", "--dry-run")
    assert "would write new.sealed" in ran.out
    shell.ok("open", "events.sealed", *KEYS, "--out", "new.jsonl", "--dry-run")
    assert not Path("new.sealed").exists()
    assert not Path("new.jsonl").exists()
    assert shell("open", "absent", *KEYS).code == "file.missing"


def test_keys_under_a_passphrase(shell: Shell) -> None:
    Path("words").write_text("open sesame\n")
    made = shell.ok("sealing", "new-kek", "slow.kek", "--passphrase-file", "words", "-o", "json").json
    assert made["protected"]
    assert Path("slow.kek").read_text().startswith("(protected-kek")
    create_kek(Path("safe.kek"), protect_kek(Secret(bytes(32)), b"open sesame", shell.random, Cost(1, 8 << 10)))
    safe = ("--kek", "safe.kek", "--kek-passphrase-file", "words")
    assert shell.ok("sealing", "new-ring", "safe.ring", *TYPE, *safe, "-o", "json").json["keys"] == 4
    words = (*TYPE, "--ring", "safe.ring", *safe)
    shell.ok("seal", "events.jsonl", *words, "--sender", "broker", "--out", "safe.sealed")
    assert len(opened(shell.ok("open", "safe.sealed", *words, "-o", "json"))) == 3
    for again in (shell("sealing", "new-kek", "safe.kek"), shell("sealing", "new-ring", "safe.ring", *TYPE, *safe)):
        assert again.code == "file.exists"
        # Nothing replaces them, so that no option is to be had for it.
        assert "--overwrite" not in again.err


OFFICE = ("sealing", "new-ring", "office.ring", "--kek", "other.kek", "--from", "all.ring", "--from-kek", "ring.kek")


def test_a_ring_for_somebody_who_reads_less(shell: Shell) -> None:
    assert shell.ok(*OFFICE, *TYPE, "--attribute", "speed", "-o", "json").json["keys"] == 2
    ran = shell.ok("open", "events.sealed", *TYPE, "--ring", "office.ring", "--kek", "other.kek", "-o", "json")
    whole = opened(shell.ok("open", "events.sealed", *KEYS, "-o", "json"))
    assert [(one["data"]["plate"], one["data"]["speed"]) for one in opened(ran)] == [
        (None, one["data"]["speed"]) for one in whole
    ]
    # What was taken from a part can be no more than the part.
    again = ("sealing", "new-ring", "more.ring", "--kek", "other.kek", "--from", "office.ring")
    assert shell(*again, *TYPE, "--attribute", "plate").code == "seal.unknown-key"
    assert shell(*again, "--type-file", "whole.type").code == "seal.unknown-key"
    assert shell.ok(*again, *TYPE, "-o", "json").json["keys"] == 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*OFFICE, *TYPE, "--attribute", "sped"), "type.unknown-attribute"),
        ((*OFFICE, "--type-file", "whole.type", "--attribute", "speed"), "seal.level"),
        ((*OFFICE[:5], *TYPE, "--attribute", "speed"), "cli.usage"),
        ((*OFFICE[:7], *TYPE), "keys.wrong-kek"),
    ],
)
def test_no_ring_is_made_that_would_open_more_or_less_than_was_meant(
    shell: Shell, words: tuple[str, ...], code: str
) -> None:
    assert shell(*words).code == code
    assert not Path("office.ring").exists()


def test_a_ring_and_its_key_that_change_places_are_told_apart(shell: Shell) -> None:
    ran = shell("open", "events.sealed", *TYPE, "--ring", "ring.kek", "--kek", "all.ring")
    assert ran.code == "keys.kek"
    assert "this is a key ring" in ran.err
    assert (
        "penstock sealing new-kek" in shell("open", "events.sealed", *TYPE, "--ring", "all.ring", "--kek", "no.kek").err
    )


def test_where_nobody_answers_a_passphrase_is_asked_for_in_a_file(shell: Shell) -> None:
    create_kek(Path("safe.kek"), protect_kek(Secret(bytes(32)), b"open sesame", shell.random, Cost(1, 8 << 10)))
    ran = shell("sealing", "new-ring", "safe.ring", *TYPE, "--kek", "safe.kek")
    assert ran.code == "cli.aborted"
    assert "--kek-passphrase-file" in ran.err


def test_which_key_encryption_key_a_ring_lies_under_can_be_seen(shell: Shell) -> None:
    create_kek(Path("safe.kek"), protect_kek(Secret(bytes(32)), b"open sesame", shell.random, Cost(1, 8 << 10)))
    shown = {name: shell.ok("key", "show", name, "-o", "json").json for name in ("all.ring", "ring.kek", "safe.kek")}
    assert shown["all.ring"]["kek"] == shown["ring.kek"]["kek"] != shown["safe.kek"]["kek"]
    assert [one["kind"] for one in shown.values()] == [
        "key ring",
        "key-encryption key",
        "key-encryption key, under a passphrase",
    ]
    ran = shell.ok("key", "show", "ring.kek")
    assert shown["ring.kek"]["kek"] in ran.out
    secret = read_kek(Path("ring.kek")).expose()
    assert secret.hex() not in ran.out
    assert shell("key", "show", "ring.kek", "--public", "ring.pub").code == "key.malformed"
    assert "principal" in shell.ok("key", "show", "-", stdin=Path("owner.key").read_bytes()).out
    Path("cut.ring").write_bytes(Path("all.ring").read_bytes()[:25])
    assert shell("key", "show", "cut.ring").status == 2
