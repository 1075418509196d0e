"""Files that another file names: found, bounded, read, and their certificates verified."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.guard.london import CCS, MET, NOW, PITO
from tests.guard.policy_kit import ask, shown
from tests.pipeline.jobs_plant import FIRST, SECOND
from tests.trust.kit import grant, key, refused, who

from penstock.apps.node.config import read_node_file
from penstock.errors import LimitError, MalformedError
from penstock.guard.policies import NO_POLICIES, Policies, PolicyCombining
from penstock.model import Domain, Principal
from penstock.pipeline.enforce.policy import read_policy_file
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.policy.syntax.xml.policies import write_policy
from penstock.store.files.named_files import NamedFiles, NamedPrincipals, NameErrors, PoliciesTable, load_policies
from penstock.store.limits import STORE_LIMITS, StoreLimits
from penstock.trust import Credentials, Right, event_tag, sign_type


def credential(number: int) -> bytes:
    tag = event_tag(who(1), FIRST.name.name, None, [Right.SUBSCRIBE])
    return Credentials.of(grant(1, number, tag)).to_bytes()


@pytest.fixture
def certificate_folder(tmp_path: Path) -> Path:
    """Return a certificate_folder with credentials in it."""
    (tmp_path / "certs").mkdir()
    for number in (2, 3):
        (tmp_path / "certs" / f"{number}.cert").write_bytes(credential(number))
    (tmp_path / "certs" / ".hidden").write_text("(junk")
    return tmp_path


def files(certificate_folder: Path, limits: StoreLimits = STORE_LIMITS) -> NamedFiles:
    return NamedFiles(certificate_folder, NAMING, limits)


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
def test_files_patterns_and_folders(certificate_folder: Path, patterns: list[str], count: int) -> None:
    assert len(files(certificate_folder).credentials(patterns)) == count
    assert (
        len(files(Path("elsewhere")).credentials([str(certificate_folder / pattern) for pattern in patterns])) == count
    )


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
def test_what_cannot_be_had(certificate_folder: Path, pattern: str, code: str) -> None:
    (certificate_folder / "empty").mkdir()
    with refused(code):
        files(certificate_folder).credentials([pattern])


@pytest.mark.parametrize("limits", [StoreLimits(policy_files=1), StoreLimits(certificates=1)])
def test_there_may_be_too_many(certificate_folder: Path, limits: StoreLimits) -> None:
    with refused("guests.limit"):
        files(certificate_folder, limits).credentials(["certs"])


def test_a_certificate_that_was_changed_is_named(certificate_folder: Path) -> None:
    file = certificate_folder / "certs" / "2.cert"
    file.write_bytes(file.read_bytes().replace(b"Reading", b"Roading"))
    with refused("cert.signature-mismatch") as caught:
        files(certificate_folder).credentials(["certs"])
    assert str(file) in caught.value.message


def test_petnames_are_written_or_in_a_file(certificate_folder: Path) -> None:
    (certificate_folder / "names.toml").write_text(f'met = "{who(4)}"\n')
    assert files(certificate_folder).principals("names.toml").find("it", "met") == who(4)
    assert files(certificate_folder).principals({"met": who(5)}).find("it", "met") == who(5)
    (certificate_folder / "names.toml").write_text("met")
    with refused("petname.malformed") as caught:
        files(certificate_folder).principals("names.toml")
    assert "names.toml" in caught.value.message


def test_a_version_has_one_definition(certificate_folder: Path) -> None:
    for name, made in (("0.type", FIRST), ("same.type", FIRST), ("1.type", SECOND)):
        (certificate_folder / name).write_bytes(sign_type(made, key(1)).to_bytes())
    first = files(certificate_folder).types(["0.type", "same.type"])
    assert {name: file for name, (file, _) in first.items()} == {FIRST.name: str(certificate_folder / "0.type")}
    assert list(files(certificate_folder).types(["1.type"], beside=first)) == [FIRST.name, SECOND.name]
    other = replace(FIRST, attributes=FIRST.attributes[:2])
    (certificate_folder / "other.type").write_bytes(sign_type(other, key(1)).to_bytes())
    with refused("guests.twice"):
        files(certificate_folder).types(["other.type"], beside=first)
    with refused("guests.twice"):
        files(certificate_folder).types(["*.type"])


NAMING = NameErrors(
    file="list of guests",
    no_match="guests.no-match",
    limit="guests.limit",
    twice="guests.twice",
    principal="guests.principal",
    help="read on",
)
ONE, OTHER = Principal(bytes(32)), Principal(bytes([1]) * 32)
NAMES = NamedPrincipals({"met": ONE, "the met": ONE, "ccs": OTHER}, NAMING)


def test_a_word_is_a_principal_or_a_petname() -> None:
    assert (NAMES.find("guest 1", str(OTHER)), NAMES.find("guest 2", "the met")) == (OTHER, ONE)
    assert NAMES.petnames.show(ONE) == "met"


@pytest.mark.parametrize(("text", "code"), [("mat", "guests.principal"), ("ed25519:met", "principal.malformed")])
def test_another_word_is_an_error(text: str, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        NAMES.find("guest 1", text)
    assert caught.value.code == code


def test_whoever_is_not_known_is_told_who_is() -> None:
    with pytest.raises(MalformedError) as caught:
        NAMES.find("guest 1", "mat")
    assert caught.value.message == "guest 1: `mat` is neither a principal nor one of the names of the list of guests"
    assert (caught.value.hint or "").endswith("ccs, met, the met")


def test_domains_have_everybody_who_is_at_home_there() -> None:
    police, city = NAMES.domains({"met": "police", "ccs": "city", str(ONE): "police"})
    assert [(one.name, tuple(one.members())) for one in (police, city)] == [("police", (ONE,)), ("city", (OTHER,))]
    (both,) = NAMES.domains({"met": "London", "ccs": "London"})
    assert tuple(both.members()) == (ONE, OTHER)
    assert NAMES.domains({}) == ()


@pytest.mark.parametrize(
    ("homes", "code"),
    [({"met": "police", "the met": "city"}, "guests.twice"), ({"mat": "police"}, "guests.principal")],
)
def test_nobody_has_two_homes_and_nobody_else_has_one(homes: dict[str, str], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        NAMES.domains(homes)
    assert caught.value.code == code


def test_errors_have_the_codes_of_their_kind_of_file() -> None:
    assert isinstance(NAMING.too_many("3 guests"), LimitError)
    assert (NAMING.too_many("3 guests").code, NAMING.given_twice("met").code) == ("guests.limit", "guests.twice")


OWNERS = NamedPrincipals({"pito": PITO.principal, "ccs": CCS.principal}, NAMING)
ALLOW = "policy allow { apply deny-overrides rule r { permit } }\n"
DOVER = (
    'attribute place { category = resource id = "urn:penstock:event:location" type = string }\n'
    'policy dover { apply deny-overrides rule r { deny target clause place == "Dover" } }\n'
)
SET = "policyset all { apply first-applicable reference policy dover reference policy allow }\n"
NODE = 'network = "ed25519:x/N"\nkey = "k"\nlisten = "127.0.0.1:0"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with policies in it, in each form."""
    (tmp_path / "allow.policy").write_text(ALLOW)
    (tmp_path / "dover.xml").write_bytes(write_policy(read_text_policy(DOVER)))
    (tmp_path / "set.policy").write_text(SET + ALLOW)
    (tmp_path / "empty.policy").write_text("// nothing yet\n")
    (tmp_path / "spoilt.xml").write_text("<Policy")
    return tmp_path


def load(folder: Path, *files: str, domains: tuple[Domain, ...] = (), **more: object) -> Policies:
    table = PoliciesTable(files, **more)  # type: ignore[arg-type]  # of the table
    return load_policies(table, NamedFiles(folder, NAMING), OWNERS, domains)


def test_policies_are_put_together(folder: Path) -> None:
    both = load(folder, "allow.policy", "dover.xml")
    assert shown(ask(both, MET)) is not None
    assert shown(ask(both, MET), location="Dover") is None
    first = load(folder, "allow.policy", "dover.xml", apply="first-applicable")
    assert shown(ask(first, MET), location="Dover") is not None
    # What a text has after its first policy is there to be referred to.
    whole = load(folder, "set.policy", refer=("dover.xml",))
    assert shown(ask(whole, MET)) is not None
    assert shown(ask(whole, MET), location="Dover") is None
    with pytest.raises(MalformedError) as caught:
        load(folder, "set.policy")
    assert caught.value.code == "xacml.unknown"
    assert load_policies(None, NamedFiles(folder, NAMING), OWNERS, ()) is NO_POLICIES


def test_the_revision_is_what_policies_say(folder: Path) -> None:
    files = ("allow.policy", "dover.xml")
    revision = load(folder, *files).revision
    assert revision == load(folder, *files).revision
    assert revision.startswith("policies:")
    # It is what they say, in whatever form.
    (folder / "again.xml").write_bytes(write_policy(read_text_policy(ALLOW)))
    assert load(folder, "again.xml", "dover.xml").revision == revision
    others = [
        load(folder, *files, rights=PolicyCombining.RESTRICT),
        load(folder, *files, owners=("pito",)),
        load(folder, *files, apply="permit-overrides"),
        load(folder, *files, domains=(Domain("UK", PITO.principal),)),
        load(folder, "allow.policy"),
    ]
    (folder / "allow.policy").write_text(ALLOW.replace("permit", "deny"))
    assert len({revision, load(folder, *files).revision, *(one.revision for one in others)}) == 7


@pytest.mark.parametrize(
    ("files", "more", "code"),
    [
        (("none.policy",), {}, "file.missing"),
        (("*.json",), {}, NAMING.no_match),
        (("empty.policy",), {}, "policies.none"),
        (("spoilt.xml",), {}, "xml.malformed"),
        (("allow.policy",), {"apply": "whim"}, "xacml.combining"),
        (("allow.policy",), {"rights": PolicyCombining.ALONE}, "policies.owners"),
        (("allow.policy",), {"owners": ("nobody",)}, NAMING.principal),
    ],
)
def test_what_is_wrong_is_refused(folder: Path, files: tuple[str, ...], more: dict[str, object], code: str) -> None:
    with refused(code):
        load(folder, *files, **more)  # type: ignore[arg-type]  # of the table


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ("policies = 1", "value"),
        ("[policies]", "missing"),
        ("[policies]\nfiles = []", "value"),
        ('[policies]\nfiles = ["a"]\nrights = "some"', "value"),
        ('[policies]\nfiles = ["a"]\nowner = ["x"]', "unknown-key"),
        ('[policies]\nfiles = ["a"]\nrefer = "b"', "value"),
    ],
)
def test_files_are_strict(table: str, code: str) -> None:
    with refused(f"node.{code}"):
        read_node_file(f"{NODE}{table}")
    with refused(f"policy.{code}"):
        read_policy_file(f'types = ["t"]\n{table}')


def test_what_a_file_says() -> None:
    table = '[policies]\nfiles = ["a"]\nrefer = ["b"]\napply = "permit-overrides"\nrights = "either"\nowners = ["pito"]'
    expected = PoliciesTable(("a",), ("b",), "permit-overrides", PolicyCombining.EITHER, ("pito",))
    assert read_node_file(f"{NODE}{table}").policies == expected
    assert read_policy_file(f'types = ["t"]\n{table}').policies == expected
    assert read_node_file(NODE).policies is None


def test_a_history_and_a_moment_go_by_the_same(folder: Path) -> None:
    policies = load(folder, "allow.policy", "dover.xml")
    for now in (NOW, None):
        decision = ask(policies, MET, now=now)
        assert decision.restriction.branches[0].where.text.endswith("<> 'Dover'")
