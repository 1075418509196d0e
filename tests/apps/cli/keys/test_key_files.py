"""`penstock key`: files that only their owner reads, principals, petnames, quorums, passphrases."""

import stat
import subprocess
from pathlib import Path

import pytest
from tests.apps.conftest import Shell
from tests.copies import Copy

from penstock.codec.sexp import parse
from penstock.crypto import ProtectedKey, PublicKey, SigningKey, read_key


def stored(name: str) -> object:
    return read_key(parse(Path(name).read_bytes()))


def test_a_new_key_is_readable_by_its_owner_alone(penstock: Shell) -> None:
    ran = penstock.ok("key", "new", "a.key", "--public", "a.pub")
    assert stat.S_IMODE(Path("a.key").stat().st_mode) == 0o600
    key, public = stored("a.key"), stored("a.pub")
    assert isinstance(key, SigningKey)
    assert public == key.public
    assert str(key.principal) in ran.out


def test_no_key_is_lost_by_accident(penstock: Shell) -> None:
    penstock.ok("key", "new", "a.key")
    before = Path("a.key").read_bytes()
    again = penstock("key", "new", "a.key")
    assert (again.status, again.code) == (1, "file.exists")
    assert Path("a.key").read_bytes() == before
    penstock.ok("key", "new", "a.key", "--overwrite")
    assert Path("a.key").read_bytes() != before
    assert stat.S_IMODE(Path("a.key").stat().st_mode) == 0o600


def test_a_public_file_in_the_way_stops_it_before_anything_is_written(penstock: Shell) -> None:
    Path("a.pub").touch()
    assert penstock("key", "new", "a.key", "--public", "a.pub").code == "file.exists"
    assert not Path("a.key").exists()


def test_a_dangling_link_is_not_followed(penstock: Shell) -> None:
    Path("a.key").symlink_to("elsewhere")
    assert penstock("key", "new", "a.key").code == "file.exists"
    assert not Path("elsewhere").exists()


def test_a_rehearsal_writes_nothing(penstock: Shell) -> None:
    ran = penstock.ok("key", "new", "a.key", "--public", "a.pub", "--name", "a", "--dry-run")
    assert "would write" in ran.out
    assert not list(penstock.folder.iterdir())


def test_show_prints_everything_but_the_secret(penstock: Shell) -> None:
    penstock.ok("key", "new", "a.key", "--name", "alice")
    key = stored("a.key")
    assert isinstance(key, SigningKey)
    for form in ("human", "json", "sexp"):
        out = penstock.ok("key", "show", "a.key", "-o", form).out
        assert key.seed.hex() not in out
        assert "private-key" not in out
    data = penstock.ok("key", "show", "a.key", "-o", "json").json
    assert data == {
        "principal": str(key.principal),
        "short": key.principal.short,
        "public_key": key.public.raw.hex(),
        "kind": "private",
        "name": "alice",
    }
    penstock.ok("key", "show", "a.key", "--public", "a.pub")
    assert isinstance(stored("a.pub"), PublicKey)
    assert penstock.ok("key", "show", "a.pub", "-o", "json").json["kind"] == "public"


@pytest.mark.usefixtures("cheap_passphrases")
def test_a_passphrase_from_a_file(penstock: Shell) -> None:
    Path("secret").write_text("open sesame\nand more\n")
    penstock.ok("key", "new", "a.key", "--passphrase-file", "secret")
    assert isinstance(stored("a.key"), ProtectedKey)
    assert penstock.ok("key", "show", "a.key", "-o", "json").json["kind"] == "protected"
    line = ("cert", "issue", "--key", "a.key", "--to", "a.key", "--network", "a.key/N", "--right", "connect")
    penstock.ok(*line, "--passphrase-file", "secret")
    Path("wrong").write_text("open barley\n")
    wrong = penstock(*line, "--passphrase-file", "wrong")
    assert (wrong.status, wrong.code) == (1, "key.passphrase")
    assert "barley" not in wrong.err


def test_a_passphrase_from_the_prompt(penstock: Shell) -> None:
    ran = penstock.ok("key", "new", "a.key", "--passphrase", stdin="sesame\nsesame\n")
    assert isinstance(stored("a.key"), ProtectedKey)
    assert "sesame" not in ran.out + ran.err
    stopped = penstock("key", "new", "b.key", "--passphrase", stdin="sesame\n")
    assert (stopped.status, stopped.code) == (3, "cli.aborted")
    assert not Path("b.key").exists()


def test_an_empty_passphrase_is_refused(penstock: Shell) -> None:
    Path("secret").write_text("\n")
    ran = penstock("key", "new", "a.key", "--passphrase-file", "secret")
    assert (ran.status, ran.code) == (2, "key.empty-passphrase")
    assert not Path("a.key").exists()


def test_list_shows_keys_and_names(penstock: Shell) -> None:
    penstock.ok("key", "new", "a.key", "--name", "alice", "--public", "a.pub")
    Path("a.key").rename("moved.key")
    Path("notes.txt").write_bytes(b"\x00 not ours")
    data = penstock.ok("key", "list", "-o", "json").json
    assert [(entry["file"], entry["kind"]) for entry in data["keys"]] == [("a.pub", "public"), ("moved.key", "private")]
    assert list(data["names"]) == ["alice"]
    assert "alice" in penstock.ok("key", "list").out
    assert penstock("key", "list", "nowhere").status == 3


def test_names_are_remembered_once(penstock: Shell) -> None:
    penstock.ok("key", "new", "a.key", "--name", "Detective Smith")
    penstock.ok("key", "new", "b.key", "--name", "b")
    assert penstock("key", "new", "c.key", "--name", "b").code == "petname.exists"
    assert not Path("c.key").exists()
    assert "Detective Smith" in penstock.ok("key", "show", "a.key").out


@pytest.mark.parametrize("name", ["ed25519:abc", "a/b", "a#b", "", "a\x1bb", "x" * 65])
def test_a_name_that_could_pass_for_something_else_is_refused(penstock: Shell, name: str) -> None:
    ran = penstock("key", "new", "a.key", "--name", name)
    assert (ran.status, ran.code) == (2, "petname.malformed")
    assert "\x1b" not in ran.err


def test_names_come_from_a_file_of_your_choice(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.ok("key", "new", "a.key", "--name", "alice", "--names", "mine.toml")
    assert not Path("names.toml").exists()
    assert "alice" not in penstock.ok("key", "show", "a.key").out
    assert "alice" in penstock.ok("key", "show", "a.key", "--names", "mine.toml").out
    monkeypatch.setenv("PENSTOCK_NAMES", "mine.toml")
    assert "alice" in penstock.ok("key", "show", "a.key").out
    monkeypatch.setenv("PENSTOCK_NAMES", "missing.toml")
    assert penstock("key", "show", "a.key").code == "file.missing"


@pytest.mark.parametrize("text", ["a = 1", "= broken", 'a = "ed25519:nonsense"', '[table]\na = "b"', "\xff"])
def test_a_broken_file_of_names_is_said_to_be_so(penstock: Shell, text: str) -> None:
    penstock.ok("key", "new", "a.key")
    Path("names.toml").write_bytes(text.encode("latin-1"))
    ran = penstock("key", "show", "a.key")
    assert ran.status == 2
    assert ran.code in ("petname.malformed", "principal.malformed")


def test_a_word_that_is_a_name_and_another_key_file_is_ambiguous(penstock: Shell) -> None:
    penstock.ok("key", "new", "a.key", "--name", "met")
    penstock.ok("key", "new", "met")
    line = ("cert", "issue", "--key", "a.key", "--network", "a.key/N", "--right", "connect", "--to")
    ambiguous = penstock(*line, "met")
    assert (ambiguous.status, ambiguous.code) == (1, "principal.ambiguous")
    penstock.ok(*line, "./met")


def test_a_quorum_is_a_principal(penstock: Shell) -> None:
    for name in "abc":
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    line = ("key", "new-quorum", "--threshold", "2", "--member", "a", "--member", "b", "--member", "c.key")
    assert "k-of-n" in penstock.ok(*line).out
    made = penstock.ok(*line, "--out", "council", "-o", "json").json
    assert made["principal"].startswith("threshold:")
    for form in ("human", "json", "sexp"):
        assert penstock.ok("key", "show", "council", "-o", form).out
    assert penstock.ok("key", "show", "council", "-o", "json").json["principal"] == made["principal"]
    penstock.ok(*line, "--out", "again", "--name", "elders")
    assert "elders" in penstock.ok("key", "list").out
    assert penstock("key", "new-quorum", "--threshold", "4", "--member", "a").code == "subject.threshold"
    assert penstock("key", "new-quorum", "--threshold", "1", "--member", "nobody").code == "principal.unknown"


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        (("--public", "no/folder/a.pub"), 3, "file.unwritable"),
        (("--public", "folder"), 1, "file.exists"),
        (("--public", "folder", "--overwrite"), 3, "file.unwritable"),
        (("--public", "./a.key"), 2, "file.twice"),
        (("--name", "a", "--names", "a.key"), 2, "file.twice"),
        (("--name", "a", "--names", "no/folder/names.toml"), 3, "file.unwritable"),
        (("--name", "a", "--names", "folder"), 3, "file.unwritable"),
        (("--name", "a", "--names", "broken.toml"), 2, "petname.malformed"),
    ],
)
def test_a_key_is_made_wholly_or_not_at_all(penstock: Shell, more: tuple[str, ...], status: int, code: str) -> None:
    Path("folder").mkdir()
    Path("broken.toml").write_text("= 1")
    before = sorted(penstock.folder.rglob("*"))
    ran = penstock("key", "new", "a.key", *more)
    assert (ran.status, ran.code) == (status, code)
    assert sorted(penstock.folder.rglob("*")) == before


@pytest.mark.usefixtures("cheap_passphrases")
def test_only_a_new_key_replaces_a_key(penstock: Shell) -> None:
    Path("secret").write_text("sesame\n")
    penstock.ok("key", "new", "a.key", "--name", "a")
    penstock.ok("key", "new", "b.key", "--passphrase-file", "secret")
    penstock.ok("key", "show", "a.key", "--public", "a.pub")
    before = {name: Path(name).read_bytes() for name in ("a.key", "b.key")}
    for name, kept in before.items():
        out = ("--out", name, "--overwrite")
        for line in (
            ("cert", "issue", "--key", "a.key", "--to", "a", "--network", "a/N", "--right", "connect", *out),
            ("cert", "issue-name", "n", "--key", "a.key", "--to", "a", *out),
            ("type", "new", "a.B", "--key", "a.key", "--attribute", "x:string", *out),
            ("key", "new-quorum", "--threshold", "1", "--member", "a", *out),
            ("key", "show", "a.key", "--public", name, "--overwrite"),
            ("key", "new", "c.key", "--public", name, "--overwrite"),
        ):
            ran = penstock(*line)
            assert (ran.status, ran.code) == (1, "file.private-key"), line
            assert Path(name).read_bytes() == kept
    assert not Path("c.key").exists()
    penstock.ok("key", "new", "b.key", "--overwrite")
    penstock.ok("key", "show", "a.key", "--public", "a.pub", "--overwrite")


def test_a_rehearsal_notices_what_would_fail(penstock: Shell) -> None:
    penstock.ok("key", "new", "a.key", "--name", "a")
    for line in (
        ("key", "new", "no/b.key", "--dry-run"),
        ("key", "show", "a.key", "--public", "no/a.pub", "--dry-run"),
        ("cert", "issue-name", "n", "--key", "a.key", "--to", "a", "--out", "no/n.cert", "--dry-run"),
    ):
        ran = penstock(*line)
        assert (ran.status, ran.code) == (3, "file.unwritable")
        assert "there is no folder `no`" in ran.err


def test_a_name_goes_over_to_the_new_key(penstock: Shell) -> None:
    Path("names.toml").write_text("# mine\n")
    penstock.ok("key", "new", "a.key", "--name", "grid")
    penstock.ok("key", "new", "b.key", "--name", "other")
    penstock.ok("key", "new", "a.key", "--name", "grid", "--overwrite")
    lines = Path("names.toml").read_text().splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["#", "grid", "other"]
    assert "grid" in penstock.ok("key", "show", "a.key").out


def test_names_are_not_lost_when_several_are_added_at_once(tmp_path: Path) -> None:
    running: list[Copy[bytes]] = [
        Copy(["key", "new", f"{number}.key", "--name", f"n{number}"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        for number in range(8)
    ]
    assert [process.wait() for process in running] == [0] * 8
    assert len((tmp_path / "names.toml").read_text().splitlines()) == 8
    assert not (tmp_path / "names.toml.lock").exists()


def test_a_lock_is_waited_for_and_no_longer_than_that(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.files.files.WAIT", 0.05)
    Path("names.toml.lock").touch()
    ran = penstock("key", "new", "a.key", "--name", "a")
    assert (ran.status, ran.code) == (3, "petname.locked")
    assert not Path("a.key").exists()
    assert Path("names.toml.lock").exists()


def test_names_are_added_listed_and_removed(penstock: Shell) -> None:
    penstock.ok("key", "new", "a.key")
    principal = penstock.ok("key", "show", "a.key", "-o", "json").json["principal"]
    penstock.ok("name", "add", "Detective Smith", "a.key")
    penstock.ok("name", "add", "Detective Smith", principal)
    assert penstock.ok("name", "list", "-o", "json").json == {"names": {"Detective Smith": principal}}
    assert penstock.ok("name", "list").out == f"Detective Smith  {principal}\n"
    penstock.ok("key", "new", "b.key")
    assert penstock("name", "add", "Detective Smith", "b.key").code == "petname.exists"
    penstock.ok("name", "add", "Detective Smith", "b.key", "--overwrite", "-o", "json")
    assert principal not in Path("names.toml").read_text()
    penstock.ok("name", "remove", "Detective Smith", "--dry-run")
    penstock.ok("name", "remove", "Detective Smith", "-o", "json")
    assert penstock("name", "remove", "Detective Smith").code == "petname.unknown"
    assert penstock("name", "add", "a/b", "a.key").code == "petname.malformed"
    penstock.ok("name", "add", "new", "a.key", "--names", "other.toml")


@pytest.mark.parametrize(
    ("typed", "meant"), [("key rotate", "penstock sealing rotate"), ("sealing new", "penstock key new")]
)
def test_signing_keys_and_keys_of_sealed_types_are_not_far_apart(penstock: Shell, typed: str, meant: str) -> None:
    ran = penstock(*typed.split())
    assert ran.code == "cli.usage"
    assert f"`{meant}`" in ran.err
