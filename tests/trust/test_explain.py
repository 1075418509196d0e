"""Explanations: the chain that allows, or the link that is missing, by its code."""

import pytest
from tests.trust.kit import FUTURE, NOW, PAST, grant, name, naming, passing, tag, who

from penstock.model.names import TypeName
from penstock.model.principals import Petnames
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate, Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import sift
from penstock.trust.explain import AuthorityQuestion, Explanation, describe_subject, explain, explain_grant, refusal
from penstock.trust.refusals import LackedRight
from penstock.trust.tags import Tag
from penstock.trust.validity import OnlineTest, Validity

ROOT, MET, CCS, SMITH, LOST = 1, 2, 3, 4, 5
READ = tag("(read)")


def question(
    *certificates: Certificate,
    quorums: tuple[Threshold, ...] = (),
    asks: int = SMITH,
    root: int | Threshold = ROOT,
    request: Tag = READ,
) -> AuthorityQuestion:
    bag = Credentials.of(*certificates, quorums=quorums)
    by = root.principal if isinstance(root, Threshold) else who(root)
    return AuthorityQuestion(bag, sift(bag, NOW), by, who(asks), request)


def codes(explanation: Explanation) -> list[str]:
    assert not explanation.allowed
    return [link.code for link in explanation.links]


def test_a_chain_that_allows() -> None:
    chain = [passing(ROOT, MET), grant(MET, name(MET, "staff")), naming(MET, "staff", SMITH)]
    found = explain(question(*reversed(chain), passing(ROOT, CCS)))
    assert found.allowed
    assert [link.certificate for link in found.links] == chain
    assert [link.code for link in found.links] == ["", "", ""]
    assert (found.code, found.missing) == ("", "")


def test_the_owner() -> None:
    found = explain(question(asks=ROOT))
    assert found.allowed
    assert not found.links
    assert list(found.lines())


def test_each_grant_can_be_explained() -> None:
    asked = question(grant(ROOT, SMITH, tag("(read a)")), passing(ROOT, MET), grant(MET, SMITH, tag("(read b)")))
    explained = [explain_grant(asked, one) for one in asked.findings().grants]
    assert [len(one.links) for one in explained] == [1, 2]


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ([passing(ROOT, MET, validity=PAST), grant(MET, SMITH)], ["cert.expired", ""]),
        ([passing(ROOT, MET), grant(MET, SMITH, validity=PAST)], ["", "cert.expired"]),
        ([passing(ROOT, MET, validity=FUTURE), grant(MET, SMITH)], ["cert.not-yet-valid", ""]),
        ([grant(ROOT, MET), grant(MET, SMITH)], ["chain.no-propagate", ""]),
        ([passing(ROOT, MET), grant(MET, CCS), grant(CCS, SMITH)], ["", "chain.no-propagate", ""]),
        ([passing(ROOT, MET, tag("(write)")), grant(MET, SMITH)], ["chain.no-authority", ""]),
        ([passing(ROOT, MET), grant(MET, SMITH, tag("(write)"))], ["", "chain.no-authority"]),
        ([passing(ROOT, MET, tag("(read a)")), grant(MET, SMITH, tag("(read b)"))], ["", "chain.no-authority"]),
        ([grant(ROOT, name(ROOT, "s")), naming(ROOT, "s", SMITH, PAST)], ["", "cert.expired"]),
        ([grant(ROOT, name(ROOT, "s"), validity=PAST), naming(ROOT, "s", SMITH)], ["cert.expired", ""]),
        ([grant(ROOT, name(ROOT, "s")), naming(ROOT, "s", MET), grant(MET, SMITH)], ["chain.no-propagate", "", ""]),
        (
            [grant(ROOT, name(MET, "a", "b")), naming(MET, "a", CCS), naming(CCS, "b", SMITH, FUTURE)],
            ["", "", "cert.not-yet-valid"],
        ),
        (
            [grant(ROOT, SMITH, validity=Validity(online=(OnlineTest("crl", (b"online", b"crl")),)))],
            ["cert.online-test"],
        ),
    ],
)
def test_the_broken_link(chain: list[Certificate], expected: list[str]) -> None:
    found = explain(question(*chain))
    assert [link.certificate for link in found.links] == chain
    assert codes(found) == expected
    assert found.code == ""


def test_the_path_with_the_fewest_broken_links_is_shown() -> None:
    worse = [passing(ROOT, MET, validity=PAST), grant(MET, SMITH, validity=PAST)]
    better = [passing(ROOT, CCS), passing(CCS, LOST), grant(LOST, SMITH, validity=PAST)]
    found = explain(question(*worse, *better))
    assert [link.certificate for link in found.links] == better
    assert codes(found) == ["", "", "cert.expired"]


def test_a_right_that_has_run_out_is_nearer_than_one_to_something_else() -> None:
    other = grant(MET, SMITH, tag("(connect)"))
    expired = grant(MET, SMITH, validity=PAST)
    found = explain(question(passing(ROOT, MET), other, expired))
    assert [link.certificate for link in found.links][-1] == expired
    assert codes(found) == ["", "cert.expired"]
    # An expired one to something else does not help.
    both = grant(MET, SMITH, tag("(connect)"), validity=PAST)
    assert codes(explain(question(grant(ROOT, MET), both, expired))) == ["chain.no-propagate", "cert.expired"]
    assert explain(question(grant(ROOT, MET), both, expired)).links[-1].certificate == expired


def test_a_missing_certificate() -> None:
    found = explain(question(passing(ROOT, MET), grant(CCS, SMITH)))
    assert codes(found) == []
    assert found.code == "chain.missing"
    assert who(MET).short in found.missing
    assert who(CCS).short in found.missing
    assert explain(question()).code == "chain.missing"


def test_a_missing_name_certificate() -> None:
    found = explain(question(passing(ROOT, MET), grant(MET, name(MET, "staff"))))
    assert found.code == "chain.missing-name"
    assert "'staff'" in found.missing
    # In a chain of names, the second is what lacks.
    found = explain(question(grant(ROOT, name(MET, "a", "b")), naming(MET, "a", CCS)))
    assert found.code == "chain.missing-name"
    assert "'b'" in found.missing
    # Where the group has members, but not this one, it might as well be a certificate for another.
    found = explain(question(grant(ROOT, name(MET, "staff")), naming(MET, "staff", CCS)))
    assert found.code == "chain.missing"


QUORUM = Threshold(2, (who(MET), who(CCS), Threshold(1, (who(6), who(7)))))


def test_too_few_members() -> None:
    found = explain(question(passing(ROOT, QUORUM), grant(MET, SMITH)))
    assert found.code == "chain.short-quorum"
    assert codes(found) == ["", ""]
    found = explain(question(grant(6, SMITH), quorums=(QUORUM,), root=QUORUM))
    assert found.code == "chain.short-quorum"
    found = explain(question(quorums=(QUORUM,), root=QUORUM))
    assert found.code == "chain.missing"
    assert explain(question(passing(ROOT, QUORUM), grant(MET, SMITH), grant(7, SMITH))).allowed


def test_names_that_grow_for_ever_are_explained_too() -> None:
    grows = [naming(MET, "a", name(MET, "a", "a")), naming(MET, "a", name(CCS, "a", "b")), naming(CCS, "a", MET)]
    found = explain(question(grant(ROOT, name(MET, "a", "b")), *grows))
    assert found.code in ("chain.missing", "chain.missing-name")


def test_long_and_cyclic_bags_are_explained() -> None:
    line = [passing(i, i + 1) for i in range(10, 400)] + [passing(i + 1, i) for i in range(10, 400)]
    found = explain(question(*line, passing(ROOT, 10), grant(400, SMITH)))
    assert len(found.links) == 392
    assert not any(codes(found))


def test_texts_for_people_and_programs() -> None:
    chain = [passing(ROOT, MET), grant(MET, name(MET, "staff"), validity=PAST), naming(MET, "staff", SMITH)]
    found = explain(question(*chain))
    names = Petnames({who(ROOT): "PITO", who(MET): "Met", who(SMITH): "Smith"})
    first, second, third = found.lines(names)
    assert first.startswith("PITO authorises Met")
    assert second.startswith("Met authorises Met's 'staff'")
    assert third.startswith("Met names 'staff' Smith")
    data = found.as_dict()
    assert data["allowed"] is False
    assert [link.get("code") for link in data["chain"]] == [None, "cert.expired", None]  # type: ignore[attr-defined]  # a list of dicts
    assert explain(question()).as_dict()["code"] == "chain.missing"
    assert describe_subject(QUORUM, names).startswith("2 of {Met, ")
    assert str(who(MET)) in describe_subject(QUORUM, names, full=True)


LACKED = LackedRight(who(SMITH), Right.MANAGE, TypeName(who(ROOT), "org.Test"))


def test_a_refusal_carries_the_cause() -> None:
    broken = refusal("test.no", LACKED, question(grant(ROOT, SMITH, validity=PAST)))
    assert (broken.code, broken.fields["cause"]) == ("test.no", "cert.expired")
    assert broken.fields["certificate"] == grant(ROOT, SMITH, validity=PAST).id
    missing = refusal("test.no", LACKED, question())
    assert missing.fields["cause"] == "chain.missing"
    assert "certificate" not in missing.fields
    narrower = refusal("test.no", LACKED, question(grant(ROOT, SMITH, tag("(read a)"))))
    assert "cause" not in narrower.fields
