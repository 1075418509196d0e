"""The page about conflicts tells what was found, and takes nothing that stands in rules for markup."""

from datetime import UTC, datetime

from penstock.pipeline.audit import ReportTable
from penstock.pipeline.conflicts.report import ConflictReport, conflicts_html

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOSTILE = "</title></svg><script>alert(1)</script>"
FOUND = ConflictReport(
    {"read": 9, "rules": 7, "not_in_force": 1, "quarantined": 1, "types": 3, "conflicts": 4, "between_types": 3},
    {"moderator.contradiction": 1},
    "scoped",
    ReportTable(("one", "other", "conflicts"), (("acme", HOSTILE, 3), ("acme", "acme", 1)), more=True),
    ReportTable(("subtree", "between_types", "same_type"), ((HOSTILE, 3, 1),)),
    ReportTable(
        ("rule", "rules", "type", "kind", "function", "others", "other", "attributes", "certain", "stated"),
        (("r1", 1, HOSTILE, "down", "fnc_s", 3, "r2", "role", True, f"role = '{HOSTILE}'"),),
    ),
)


def test_the_page_tells_what_was_found_and_runs_nothing() -> None:
    page = conflicts_html(FOUND, at=NOON)
    assert page == conflicts_html(FOUND, at=NOON)
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert "There is more than is shown." in page
    assert "moderator.contradiction" in page
    assert page.count('role="img"') == 3
    assert ">4<" in page


def test_a_report_as_data_says_what_is_shortened() -> None:
    data = FOUND.as_dict()
    assert data["shortened"] == ["organisations"]
    assert data["subtrees"] == [{"subtree": HOSTILE, "between_types": 3, "same_type": 1}]
