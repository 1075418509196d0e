"""Bad input of every kind gives a stable code and exit status 1 or 2, never a traceback."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from tests.apps.conftest import NOW, Shell

from penstock.codec.sexp import advanced, canonical, parse
from penstock.crypto import SigningKey, private_key_to_sexp
from penstock.model import AttributeDefinition, AttributeSpec, Kind, TypeDefinition, TypeName
from penstock.store.files.files import MAX_BYTES
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.tags import parse_tag
from penstock.trust.validity import Validity

OWNER, MET, SMITH = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
TAG = event_tag(OWNER.principal, "uk.*", None, [Right.SUBSCRIBE])
DAY = timedelta(days=1)


@pytest.fixture
def files(penstock: Shell) -> Shell:
    """A type, two certificates that make a chain, and keys."""
    for name, key in {"owner": OWNER, "met": MET, "smith": SMITH}.items():
        Path(f"{name}.key").write_text(advanced(private_key_to_sexp(key)))
    definition = TypeDefinition(
        TypeName(OWNER.principal, "uk.Plate"), (AttributeDefinition("plate", "0", AttributeSpec(Kind.STRING)),)
    )
    Path("plate.type").write_bytes(sign_type(definition, OWNER).to_bytes())
    Path("good.cert").write_bytes(bag((OWNER, MET, True), (MET, SMITH, False)))
    return penstock


def bag(*links: tuple[SigningKey, SigningKey, bool], validity: Validity | None = None) -> bytes:
    """Return a chain of certificates."""
    dates = validity or Validity()
    return Credentials.of(
        *(issue(Authorisation(a.principal, b.principal, TAG, on, dates), a) for a, b, on in links)
    ).to_bytes()


def explain(*credentials: str) -> tuple[str, ...]:
    shown = [part for name in credentials for part in ("--credential", name)]
    return ("explain", "--type-file", "plate.type", "--principal", "smith.key", "--right", "subscribe", *shown)


def test_the_good_ones_are_good(files: Shell) -> None:
    files.ok(*explain("good.cert"))
    files.ok("cert", "verify", "good.cert")
    files.ok("type", "verify", "plate.type")


READERS = [
    ("cert", "show"),
    ("cert", "verify"),
    ("type", "show"),
    ("type", "verify"),
    ("key", "show"),
    ("spki", "reduce"),
    ("moderator", "check"),
    ("moderator", "test"),
    ("moderator", "take"),
    ("sexp", "show"),
    ("sexp", "canonical"),
    ("sexp", "transport"),
]
HOSTILE = {
    "empty": b"",
    "garbage": bytes(range(256)) * 4,
    "text": b"hello there\n",
    "zeros": bytes(1000),
    "deep": b"(" * 100_000,
    "deep and closed": b"(" * 70 + b"1:x" + b")" * 70,
    "a length that lies": b"(9999999999:abc)",
    "an odd atom": b"(4:cert(6:issuer))",
    "oversized": b"(" + b"1:a" * 400_000 + b")",
    "many": b"(" + b"()" * 70_000 + b")",
    "utf-16": "(cert)".encode("utf-16"),
    "braces": b"{!!!}",
}


@pytest.mark.parametrize("reader", READERS, ids=[" ".join(reader) for reader in READERS])
@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes(penstock: Shell, reader: tuple[str, ...], data: bytes) -> None:
    Path("bad").write_bytes(data)
    ran = penstock(*reader, "bad")
    harmless = reader == ("cert", "show") and not data.strip()
    if reader[0] != "sexp" and not harmless:
        assert ran.status in (1, 2)
        assert ran.code
    else:
        assert ran.status in (0, 2)
    as_json = penstock(*reader, "bad", "-o", "json")
    assert json.loads(as_json.err)["error"]["code"] if as_json.err else as_json.status == 0


def test_truncated_at_every_place(files: Shell) -> None:
    for name, reader in {"good.cert": ("cert", "verify"), "plate.type": ("type", "verify")}.items():
        whole = Path(name).read_bytes()
        for end in range(0, len(whole), 23):
            Path("bad").write_bytes(whole[:end])
            ran = files(*reader, "bad")
            assert ran.status in (1, 2)
            assert ran.code in ("sexp.truncated", "sexp.syntax", "cert.none"), ran.err


def test_a_changed_byte_is_noticed(files: Shell) -> None:
    for name, reader in {"good.cert": ("cert", "verify"), "plate.type": ("type", "verify")}.items():
        whole = Path(name).read_bytes()
        for position in range(0, len(whole), 17):
            changed = bytearray(whole)
            changed[position] ^= 1
            Path("bad").write_bytes(changed)
            ran = files(*reader, "bad")
            assert ran.status in (1, 2), position
            assert ran.code


def test_a_cycle_of_delegations_ends(files: Shell) -> None:
    Path("cycle").write_bytes(bag((OWNER, MET, True), (MET, OWNER, True), (MET, MET, True)))
    ran = files(*explain("cycle"))
    assert (ran.status, ran.code) == (1, "chain.missing")
    Path("more").write_bytes(bag((OWNER, MET, True), (MET, OWNER, True), (MET, SMITH, False)))
    files.ok(*explain("more"))
    assert "→" in files.ok("cert", "show", "cycle").out
    Path("island").write_bytes(bag((MET, SMITH, True), (SMITH, MET, True)))
    assert files.ok("cert", "show", "island").out.count("✓") == 2


def test_the_wrong_key(files: Shell) -> None:
    forged = issue(Authorisation(MET.principal, SMITH.principal, TAG), MET)
    body = Authorisation(OWNER.principal, SMITH.principal, TAG).to_sexp()
    # The words of the owner over the signature of another.
    octets = MET.sign(canonical(body))
    signature = forged.signature
    assert isinstance(signature, tuple)
    digest = issue(Authorisation(OWNER.principal, SMITH.principal, TAG), OWNER).signature
    assert isinstance(digest, tuple)
    Path("wrong-key").write_bytes(canonical((b"sequence", body, (b"signature", digest[1], signature[2], octets))))
    Path("bad-signature").write_bytes(canonical((b"sequence", body, (b"signature", digest[1], digest[2], octets))))
    Path("mismatch").write_bytes(canonical((b"sequence", body, signature)))
    for name, code in {
        "wrong-key": "cert.wrong-key",
        "bad-signature": "key.bad-signature",
        "mismatch": "cert.signature-mismatch",
    }.items():
        ran = files("cert", "verify", name)
        assert (ran.status, ran.code) == (1, code)
    # An explanation leaves it out, and says so.
    for name, code in {
        "wrong-key": "cert.wrong-key",
        "bad-signature": "key.bad-signature",
        "mismatch": "cert.signature-mismatch",
    }.items():
        ran = files(*explain(name))
        assert (ran.status, ran.code) == (1, "chain.missing")
        assert f"[{code}]" in ran.err
        files.ok(*explain(name, "good.cert"))
        Path("both").write_bytes(Path(name).read_bytes() + Path("good.cert").read_bytes())
        files.ok(*explain("both"))


def test_what_was_changed_is_shown_and_marked(files: Shell) -> None:
    Path("changed.cert").write_bytes(Path("good.cert").read_bytes().replace(b"9:subscribe", b"7:publish", 1))
    for form in ((), ("--long",)):
        shown = files.ok("cert", "show", "changed.cert", *form).out
        assert "publish" in shown
        assert shown.count("not verified: the signature belongs to another certificate") == 1
    told = files.ok("cert", "show", "changed.cert", "-o", "json").json["certificates"]
    assert sorted(one.get("code", "") for one in told) == ["", "cert.signature-mismatch"]
    assert "publish" in files.ok("cert", "show", "changed.cert", "-o", "sexp").out
    ran = files("cert", "verify", "changed.cert", "-o", "json")
    assert (ran.status, ran.json["ok"], len(ran.json["certificates"])) == (1, False, 2)
    Path("changed.type").write_bytes(
        Path("plate.type").read_bytes().replace(b"9:attribute5:plate", b"9:attribute5:badge")
    )
    shown = files.ok("type", "show", "changed.type").out
    assert "badge" in shown
    assert "✗ not verified" in shown
    assert files.ok("type", "show", "changed.type", "-o", "json").json["code"] == "type.signature-mismatch"
    assert "badge" in files.ok("type", "show", "changed.type", "-o", "sexp").out
    assert files("type", "verify", "changed.type").code == "type.signature-mismatch"


def test_explain_gives_a_program_one_object_whatever_happens(files: Shell) -> None:
    Path("changed.type").write_bytes(
        Path("plate.type").read_bytes().replace(b"9:attribute5:plate", b"9:attribute5:badge")
    )
    for line in (
        explain("missing"),
        (*explain(), "--at", "soon"),
        ("explain", "--type-file", "changed.type", "--principal", "smith.key", "--right", "subscribe"),
    ):
        ran = files(*line, "-o", "json")
        assert ran.status
        assert ran.json["allowed"] is False
        assert ran.json["code"] == json.loads(ran.err)["error"]["code"]


def test_expired_and_not_yet_valid(files: Shell) -> None:
    for name, validity, code in (
        ("expired", Validity.between(None, NOW - DAY), "cert.expired"),
        ("early", Validity.between(NOW + DAY, None), "cert.not-yet-valid"),
    ):
        Path(name).write_bytes(bag((OWNER, MET, True), (MET, SMITH, False), validity=validity))
        for line in (explain(name), ("cert", "verify", name)):
            ran = files(*line)
            assert (ran.status, ran.code) == (1, code)


def test_an_unknown_tag_grants_nothing(files: Shell) -> None:
    other = issue(Authorisation(OWNER.principal, SMITH.principal, parse_tag((b"spend", b"money"))), OWNER)
    Path("other").write_bytes(Credentials.of(other).to_bytes())
    ran = files(*explain("other"))
    assert (ran.status, ran.code) == (1, "chain.no-authority")
    assert "spend" in files.ok("cert", "show", "other").out
    body = parse(canonical(other.body).replace(b"(3:tag(5:spend5:money))", b"(3:tag(1:*7:unknown1:x))"))
    Path("unknown").write_bytes(canonical((b"sequence", body, other.signature)))
    for line in (("cert", "verify", "unknown"), ("cert", "show", "unknown")):
        ran = files(*line)
        assert (ran.status, ran.code) == (2, "tag.unknown-form")
    ran = files(*explain("unknown"))
    assert (ran.status, ran.code) == (1, "chain.missing")
    assert "is left out" in ran.err
    assert "[tag.unknown-form]" in ran.err


def test_a_right_that_is_not_understood_grants_nothing(files: Shell) -> None:
    owner = str(OWNER.principal).encode()
    star = (b"*",)
    # Nine places, and a forced value where a condition belongs.
    for tag in (
        (b"event-type", owner, b"uk.Plate", star, b"subscribe", star, star, star, b"more"),
        (
            b"event-type",
            owner,
            b"uk.Plate",
            star,
            b"subscribe",
            star,
            star,
            (b"*", b"where", (b"is", (b"a",), (b"b",))),
        ),
    ):
        odd = issue(Authorisation(OWNER.principal, SMITH.principal, parse_tag(tag)), OWNER)
        Path("odd").write_bytes(Credentials.of(odd).to_bytes())
        ran = files(*explain("odd"))
        assert (ran.status, ran.code) == (1, "capability.malformed")
        assert "✗" in ran.out
        files.ok(*explain("odd", "good.cert"))
        files.ok("cert", "show", "odd")


def test_arguments_that_are_no_text(files: Shell) -> None:
    line = ("cert", "issue", "--key", "met.key", "--to", "met.key", "--network", "met.key/N", "--right", "connect")
    ran = files(*line, "--comment", "\udcff")
    assert (ran.status, ran.code) == (2, "value.text")
    for option in ("--to", "--names", "--not-after"):
        assert files(*line, option, "\udcff").status in (2, 3)
    assert (
        files("cert", "issue-name", "\udcff", "--key", "met.key", "--to", "met.key", "-o", "json").json["name"]
        == "\\xff"
    )
    assert files("selector", "check", "\udcff").code == "selector.syntax"


def test_the_wrong_type_of_thing(files: Shell) -> None:
    for line, code in {
        ("type", "verify", "good.cert"): "type.malformed",
        ("type", "show", "met.key"): "type.malformed",
        ("cert", "verify", "plate.type"): "cert.malformed",
        ("cert", "show", "met.key"): "cert.malformed",
        ("key", "show", "good.cert"): "key.malformed",
        ("spki", "reduce", "good.cert"): "redtest.malformed",
        ("explain", "--network", "good.cert/N", "--principal", "met.key", "--right", "connect"): "key.malformed",
        ("type", "new", "a.B", "--key", "good.cert"): "key.malformed",
    }.items():
        ran = files(*line)
        assert (ran.status, ran.code) == (2, code), line


def test_a_secret_in_the_wrong_place_is_not_repeated(files: Shell) -> None:
    text = Path("met.key").read_text()
    secret = text.partition("(d |")[2].partition("|")[0]
    assert len(secret) == 44
    Path("broken.key").write_text(text.replace("private-key", "private-kex"))
    for line in (
        ("key", "show", "broken.key"),
        ("cert", "show", "met.key"),
        ("type", "show", "met.key"),
        ("spki", "reduce", "met.key"),
        ("cert", "issue", "--key", "broken.key", "--to", "met.key", "--network", "met.key/N", "--right", "connect"),
    ):
        for form in ((), ("-o", "json")):
            ran = files(*line, *form)
            assert ran.status == 2
            assert secret not in ran.out + ran.err


@pytest.mark.parametrize("name", [".", "missing", "a\x00b", "x" * 5000, "good.cert/under"])
def test_what_cannot_be_read(files: Shell, name: str) -> None:
    for line in (("cert", "show", name), ("type", "verify", name), ("spki", "reduce", name), explain(name)):
        ran = files(*line)
        assert ran.status == 3
        assert ran.code in ("file.missing", "file.unreadable")


def test_what_cannot_be_written(files: Shell) -> None:
    ran = files("key", "new", "no/such/folder/a.key")
    assert (ran.status, ran.code) == (3, "file.unwritable")
    ran = files("key", "new", ".", "--overwrite")
    assert ran.status == 3
    # As /dev/null is: a file in its place would stop everybody on the machine.
    os.mkfifo("pipe")
    for more in ((), ("--overwrite",)):
        ran = files("key", "new", "pipe", *more)
        assert (ran.status, ran.code) == (3, "file.unwritable")
    assert Path("pipe").is_fifo()


def test_a_file_that_is_too_large(files: Shell) -> None:
    with Path("large").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    ran = files("cert", "show", "large")
    assert (ran.status, ran.code) == (2, "file.limit")


def test_only_regular_files_are_read(files: Shell) -> None:
    os.mkfifo("pipe")
    for name in ("pipe", "/dev/zero"):
        for line in (("cert", "show", name), ("key", "show", name), ("sexp", "show", name), explain(name)):
            ran = files(*line)
            assert (ran.status, ran.code) == (3, "file.unreadable")
            assert f"`{name}`" in ran.err
    assert [entry["file"] for entry in files.ok("key", "list", "-o", "json").json["keys"]] == [
        "met.key",
        "owner.key",
        "smith.key",
    ]


def test_nothing_is_said_to_be_nothing(files: Shell) -> None:
    assert files.ok("cert", "show", os.devnull).out == "nothing: no certificate and no quorum\n"
    assert files("cert", "verify", os.devnull).code == "cert.none"


def test_errors_name_the_file(files: Shell) -> None:
    Path("bad").write_text("(k-of-n 1")
    Path("quorum").write_text("(k-of-n 1 2)")
    Path("odd").write_text("(a)")
    for name, *line in (
        ("bad", "cert", "show", "bad"),
        ("bad", "key", "show", "bad"),
        ("bad", "sexp", "show", "bad"),
        ("bad", "sexp", "canonical", "bad"),
        ("bad", "spki", "reduce", "bad"),
        ("bad", "cert", "issue-name", "n", "--key", "bad", "--to", "met.key"),
        ("bad", "cert", "issue-name", "n", "--key", "met.key", "--to", "bad"),
        ("odd", "cert", "issue-name", "n", "--key", "odd", "--to", "met.key"),
        ("odd", "spki", "reduce", "odd"),
        ("odd", "type", "verify", "odd"),
        ("quorum", "key", "show", "quorum"),
        ("names.toml", "key", "list"),
        ("nowhere", "key", "list", "nowhere"),
    ):
        if name != "names.toml":
            Path("names.toml").unlink(missing_ok=True)
        else:
            Path("names.toml").write_text('a = "ed25519:x"')
        ran = files(*line)
        assert ran.status in (2, 3), line
        assert ran.err.count(f"`{name}`") == 1, ran.err
    assert "standard input: " in files("sexp", "show", stdin="(a").err


def test_wrong_use_is_an_error_like_any_other(penstock: Shell) -> None:
    for line in (("frob",), ("key", "frob"), ("key", "new"), ("key", "new", "--frob"), ("cert", "verify")):
        ran = penstock(*line)
        assert (ran.status, ran.code) == (2, "cli.usage")
        assert "hint: " in ran.err
        ran = penstock(*line, "-o", "json")
        assert json.loads(ran.err)["error"]["code"] == "cli.usage"


def test_explain_says_which_options_to_give(penstock: Shell) -> None:
    ran = penstock("explain")
    assert (ran.status, ran.code, "hint: give `--principal`" in ran.err) == (2, "client.environment", True)
    penstock.ok("key", "new", "me.key", "--name", "me")
    ran = penstock("explain", "--principal", "me")
    assert (ran.status, ran.code, "hint: give --type-file, --type or --network" in ran.err) == (2, "cli.resource", True)


def test_a_noun_alone_shows_its_verbs(penstock: Shell) -> None:
    for line in ((), ("cert",), ("selector",)):
        ran = penstock(*line)
        assert (ran.status, ran.code, ran.out) == (2, "cli.usage", "")
        assert ran.err.startswith("Usage: penstock")
    assert json.loads(penstock("cert", "-o", "json").err)["error"]["code"] == "cli.usage"


def test_explain_needs_to_know_what_about(files: Shell) -> None:
    line = ("explain", "--principal", "met.key", "--right")
    assert files(*line, "connect").code == "cli.resource"
    assert files(*line, "publish").code == "cli.resource"
    assert files(*line, "publish", "--network", "owner.key/N").code == "cli.resource"
    assert files(*line, "publish", "--type", "owner.key/*").code == "name.malformed"
    assert files(*line, "publish", "--type", "owner.key/a.B", "--type-file", "plate.type").code == "cli.resource"
    assert files(*line, "publish", "--type", "owner.key/a.B").code == "chain.missing"
    files.ok("explain", "--principal", "owner.key", "--right", "manage", "--type", "owner.key/a.B@7")


def test_explain_asks_for_the_network_too(files: Shell) -> None:
    ran = files(*explain("good.cert"), "--network", "owner.key/N", "-o", "json")
    assert ran.status == 1
    assert [answer["allowed"] for answer in ran.json["answers"]] == [False, True]
