"""`penstock experiment`: the list, a quick run with its page, and unknown names."""

from pathlib import Path

from tests.apps.conftest import Shell

from penstock.simulate.experiments.catalogue import CATALOGUE


def test_the_list_names_every_experiment_once(penstock: Shell) -> None:
    names = [one["name"] for one in penstock("experiment", "list", "-o", "json").json["experiments"]]
    assert names == [one.name for one in CATALOGUE]
    assert len(set(names)) == len(names)


def test_a_quick_run_writes_its_section_of_a_page(penstock: Shell) -> None:
    done = penstock("experiment", "capabilities-table4.8", "--quick", "--out", "page.md", "-o", "json")
    (one,) = done.json["experiments"]
    assert (one["name"], one["figure"]) == ("capabilities-table4.8", "Table 4.8")
    assert done.json["files"] == ["page.md", "page/capabilities-table4.8.svg"]
    text = Path("page.md").read_text(encoding="utf-8")
    assert one["verdict"] in text
    assert done.json["machine"] in text
    assert one["quick"] is True
    assert "A quick run" in text


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(penstock: Shell) -> None:
    done = penstock("experiment", "capabilities-table4.8", "--out", "pages/page.md")
    assert done.code == "file.unwritable"
    assert "pages" in done.err
    Path("page.md").write_text("<!-- begin experiments -->\n\nNotes\n")
    assert penstock("experiment", "capabilities-table4.8", "--out", "page.md").code == "experiment.page"
    for name in ("", "x" * 300):
        assert penstock("experiment", "capabilities-table4.8", "--out", name).code == "file.unwritable"
    # The default page of all of them.
    Path("docs").touch()
    assert penstock("experiment", "all", "--quick").code == "file.unwritable"
    assert penstock("experiment", "capabilities-table4.8", "--share", "nan").status == 2


def test_an_unknown_experiment_is_refused_with_the_name_that_was_meant(penstock: Shell) -> None:
    done = penstock("experiment", "pubsub-fig4")
    assert (done.status, done.code) == (2, "experiment.unknown")
    assert "pubsub-fig4a" in done.err
