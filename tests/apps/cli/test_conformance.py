"""`penstock conformance`: the suites of others, where they are there, and the answer when there is none."""

from pathlib import Path

from tests.apps.conftest import Shell


def test_every_case_of_the_suite_passes(penstock: Shell, suites: Path) -> None:
    done = penstock("conformance", "xacml", str(suites / "xacml-3.0"), "-o", "json")
    assert done.json["failed"] == []
    # What was not run has not passed.
    assert (done.json["passed"], [*done.json["defective"]]) == (285, ["IIA023"])
    assert done.status == 0


def test_a_case_that_fails_is_told(penstock: Shell, suites: Path) -> None:
    source = min((suites / "xacml-3.0").glob("IIB*Request.xml"))
    case = source.name.removesuffix("Request.xml")
    for part in ("Policy", "Request", "Response"):
        text = source.with_name(f"{case}{part}.xml").read_text("utf-8")
        if part == "Response":
            text = text.replace("<Decision>Permit<", "<Decision>Deny<").replace(
                "<Decision>NotApplicable<", "<Decision>Deny<"
            )
        (penstock.folder / f"{case}{part}.xml").write_text(text, "utf-8")
    done = penstock("conformance", "xacml", ".")
    assert (done.status, done.code) == (1, "conformance.failed")
    assert f"{case}: decision is" in done.out


def test_a_folder_that_is_none(penstock: Shell) -> None:
    done = penstock("conformance", "xacml", "nowhere")
    assert (done.status, done.code) == (3, "file.unreadable")
