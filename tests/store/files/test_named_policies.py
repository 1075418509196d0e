"""The table `policies` of node files and policy files: read strictly, and what it names put together."""

from pathlib import Path

import pytest
from tests.guard.london import CCS, MET, NOW, PITO
from tests.guard.policy_kit import ask, shown
from tests.store.files.test_named_files_principals import NAMING
from tests.trust.kit import refused

from penstock.apps.node.config import read_node_file
from penstock.errors import MalformedError
from penstock.guard.policies import NO_POLICIES, Policies, PolicyCombining
from penstock.model import Domain
from penstock.pipeline.enforce.policy import read_policy_file
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.policy.syntax.xml.policy_writer import write_policy
from penstock.store.files.named_files import NamedFiles, NamedPrincipals
from penstock.store.files.named_policies import PoliciesTable, load_policies

NAMES = NamedPrincipals({"pito": PITO.principal, "ccs": CCS.principal}, NAMING)
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
    return load_policies(table, NamedFiles(folder, NAMING), NAMES, domains)


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
    assert load_policies(None, NamedFiles(folder, NAMING), NAMES, ()) is NO_POLICIES


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
