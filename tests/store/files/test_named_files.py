"""Files that another file names: found, bounded, read, and their certificates verified."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.pipeline.jobs_plant import FIRST, SECOND
from tests.store.files.test_named_files_principals import NAMING
from tests.trust.kit import grant, key, refused, who

from penstock.store.files.named_files import NamedFiles
from penstock.store.limits import STORE_LIMITS, StoreLimits
from penstock.trust import Credentials, Right, event_tag, sign_type


def credential(number: int) -> bytes:
    tag = event_tag(who(1), FIRST.name.name, None, [Right.SUBSCRIBE])
    return Credentials.of(grant(1, number, tag)).to_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with credentials in it."""
    (tmp_path / "certs").mkdir()
    for number in (2, 3):
        (tmp_path / "certs" / f"{number}.cert").write_bytes(credential(number))
    (tmp_path / "certs" / ".hidden").write_text("(junk")
    return tmp_path


def files(folder: Path, limits: StoreLimits = STORE_LIMITS) -> NamedFiles:
    return NamedFiles(folder, NAMING, limits)


@pytest.mark.parametrize(
    ("patterns", "count"),
    [
        ([], 0),
        (["certs/2.cert"], 1),
        (["certs/2.cert", "certs/2.cert"], 1),
        (["certs"], 2),
        (["certs/*.cert"], 2),
        (["**/*.cert", "certs/", "certs/3.cert"], 2),
    ],
)
def test_files_patterns_and_folders(folder: Path, patterns: list[str], count: int) -> None:
    assert len(files(folder).credentials(patterns)) == count
    assert len(files(Path("elsewhere")).credentials([str(folder / pattern) for pattern in patterns])) == count


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("*.cert", "guests.no-match"),
        ("empty", "guests.no-match"),
        ("nothing.cert", "file.missing"),
        ("cert?", "file.unreadable"),
        ("a\0b", "file.unreadable"),
        ("a\0*", "guests.no-match"),
        ("certs/.hidden", "sexp.truncated"),
    ],
)
def test_what_cannot_be_had(folder: Path, pattern: str, code: str) -> None:
    (folder / "empty").mkdir()
    with refused(code):
        files(folder).credentials([pattern])


@pytest.mark.parametrize("limits", [StoreLimits(policy_files=1), StoreLimits(certificates=1)])
def test_there_may_be_too_many(folder: Path, limits: StoreLimits) -> None:
    with refused("guests.limit"):
        files(folder, limits).credentials(["certs"])


def test_a_certificate_that_was_changed_is_named(folder: Path) -> None:
    file = folder / "certs" / "2.cert"
    file.write_bytes(file.read_bytes().replace(b"Reading", b"Roading"))
    with refused("cert.signature-mismatch") as caught:
        files(folder).credentials(["certs"])
    assert str(file) in caught.value.message


def test_petnames_are_written_or_in_a_file(folder: Path) -> None:
    (folder / "names.toml").write_text(f'met = "{who(4)}"\n')
    assert files(folder).principals("names.toml").find("it", "met") == who(4)
    assert files(folder).principals({"met": who(5)}).find("it", "met") == who(5)
    (folder / "names.toml").write_text("met")
    with refused("petname.malformed") as caught:
        files(folder).principals("names.toml")
    assert "names.toml" in caught.value.message


def test_a_version_has_one_definition(folder: Path) -> None:
    for name, made in (("0.type", FIRST), ("same.type", FIRST), ("1.type", SECOND)):
        (folder / name).write_bytes(sign_type(made, key(1)).to_bytes())
    first = files(folder).types(["0.type", "same.type"])
    assert {name: file for name, (file, _) in first.items()} == {FIRST.name: str(folder / "0.type")}
    assert list(files(folder).types(["1.type"], beside=first)) == [FIRST.name, SECOND.name]
    other = replace(FIRST, attributes=FIRST.attributes[:2])
    (folder / "other.type").write_bytes(sign_type(other, key(1)).to_bytes())
    with refused("guests.twice"):
        files(folder).types(["other.type"], beside=first)
    with refused("guests.twice"):
        files(folder).types(["*.type"])
