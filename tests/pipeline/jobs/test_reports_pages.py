"""A report is one accessible page that loads nothing, runs nothing, and is the same for the same facts."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from penstock.errors import MalformedError
from penstock.model import AttributeId, Petnames, Principal, TypeKey
from penstock.pipeline import pages
from penstock.pipeline.audit import AuditReport, ReportTable
from penstock.pipeline.comparison import (
    AffectedReader,
    PolicyComparison,
    VisibilityChange,
    whatif_html,
)
from penstock.pipeline.jobs.reports import (
    audit_html,
)
from penstock.trust.capabilities import Right

OWNER, READER = Principal(bytes(32)), Principal(b"\1" * 32)
KEY = TypeKey(OWNER, "org.plant.Reading")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror='a(\"b\")'>&amp;\u202e\x00"
NAMES = Petnames({OWNER: f"owner {HOSTILE}"})

COMPARISON = PolicyComparison(
    HOSTILE,
    HOSTILE,
    20_000,
    (AffectedReader(HOSTILE, READER, KEY), AffectedReader("calm", READER, KEY)),
    (
        VisibilityChange(AffectedReader(HOSTILE, READER, KEY), None, "", 1_234, 0, (HOSTILE, "e1")),
        VisibilityChange(
            AffectedReader("calm", READER, KEY), AttributeId(OWNER, KEY.name, "0"), "value", 5, 42, (), (HOSTILE,)
        ),
        *(VisibilityChange(AffectedReader(f"r{n}", OWNER, KEY), None, "", 1, 0, ("e",)) for n in range(30)),
    ),
    (AffectedReader(HOSTILE, OWNER, KEY),),
    (HOSTILE,),
    (HOSTILE, "org.plant.Reading sensor"),
)


def rows(*cells: object, times: int = 2) -> tuple[tuple[object, ...], ...]:
    return (cells,) * times


REPORT = AuditReport(
    NOON,
    None,
    12_345,
    ReportTable(
        ("credential", "decisions", "events", "first", "last"), rows(HOSTILE, 1, 2, NOON, NOON), more=True
    ),
    ReportTable(("credential", "issuer", "subject", "right"), rows(HOSTILE, HOSTILE, str(OWNER), HOSTILE)),
    ReportTable(
        ("principal", "action", "resource", "permitted", "refused", "events", "last"),
        rows(str(OWNER), "subscribe", f"{OWNER}/{KEY.name}@0", 3, 4, 5, NOON),
    ),
    ReportTable(
        ("principal", "action", "resource", "effect", "code", "decisions", "last"),
        (*rows(HOSTILE, "subscribe", HOSTILE, "deny", None, 6, NOON),
         *rows(HOSTILE, "subscribe", HOSTILE, "indeterminate", "cert.expired", 1, NOON)),
    ),
    ReportTable(("origin", "target", "action", "decisions", "events"), rows(HOSTILE, None, "subscribe", 1, 77)),
    ReportTable(("action", "decisions", "p50", "p90", "p99", "longest"), rows("subscribe", 8, 1.5, 2.5, 3.5, 4)),
    ReportTable(
        ("id", "time", "source", "principal", "action", "resource", "effect", "took"),
        rows(HOSTILE, NOON, HOSTILE, HOSTILE, "subscribe", HOSTILE, "permit", 9),
    ),
    ReportTable(
        ("start", "permit", "deny", "indeterminate"),
        tuple((NOON + timedelta(hours=2 * n), 10 + n, n % 3, 1) for n in range(40)),
    ),
    kept_back=ReportTable(
        ("principal", "action", "resource", "effect", "events", "last"),
        rows(f"{OWNER} 'staff'", "subscribe", HOSTILE, "permit", 1_001, NOON),
    ),
    revocations=ReportTable(
        ("owner", "revocations", "credentials", "p50", "p95", "longest", "last"),
        (*rows(str(OWNER), 3, 4, 1_500.0, 2_500.0, 3_000, NOON), *rows(HOSTILE, 1, 1, 1.0, 1.0, 1, NOON)),
    ),
)  # fmt: skip

EMPTY = ReportTable(("start", "permit", "deny", "indeterminate"), ())
NONE = replace(REPORT.refusals, rows=())
PAGES = {
    "what-if": whatif_html(COMPARISON, names=NAMES),
    "what-if, nothing": whatif_html(PolicyComparison("a", "b", 0, (), ())),
    "audit": audit_html(REPORT, names=NAMES),
    "audit, nothing": audit_html(AuditReport(None, None, 0, EMPTY, None, EMPTY, NONE, EMPTY, EMPTY, EMPTY, EMPTY)),
}
PLOT = 'role="img"'
VOID = {"meta", "link", "img", "br"}


class Reading(HTMLParser):
    """Checks that a page is well-formed, and keeps its elements and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_a_page_loads_and_runs_nothing(page: str) -> None:
    read = Reading(page)
    assert read.open == []
    tags = {tag for tag, _ in read.seen}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "a", "form", "base"}
    for _, attributes in read.seen:
        assert not any(name.startswith("on") or name in ("src", "href", "srcdoc", "action") for name in attributes)
    assert not re.search(r"url\(|@import", page)
    assert page.replace("http://www.w3.org/2000/svg", "").count("http:") == 0
    assert "default-src 'none'" in page


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_hostile_names_are_text(page: str) -> None:
    assert "\x00" not in page
    assert "\u202e" not in page
    assert "<script" not in page
    assert "&amp;amp;" in page or "alert" not in page


def test_hostile_names_are_shown_as_they_are() -> None:
    shown = HOSTILE.replace("\x00", "�").replace("\u202e", "�")
    for page in (PAGES["what-if"], PAGES["audit"]):
        assert any(shown in text for text in Reading(page).texts)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_plots_have_a_text_and_a_table_beside_them(page: str) -> None:
    read = Reading(page)
    ids = [attributes["id"] for _, attributes in read.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    for section in page.split("<section>")[1:]:
        assert section.count("<svg") <= section.count(PLOT) <= section.count("<table")
        assert all(label and "The table below" in label for label in re.findall(f'{PLOT} aria-label="(.*?)"', section))
    for found in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(found)  # noqa: S314  # our own, and it must be well-formed
    assert ("html", {"lang": "en"}) in read.seen
    assert all(attributes.get("scope") == "col" for tag, attributes in read.seen if tag == "th")
    headings = [tag for tag, _ in read.seen if tag in ("h1", "h2")]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1


def _figure(page: str, title: str) -> str:
    return page.split(f'{PLOT} aria-label="{title}', 1)[1].split("</figure>", 1)[0]


def test_the_numbers_are_there() -> None:
    page = PAGES["what-if"]
    assert "20,000" in page
    assert "+1,234" in page
    assert "−42" in page
    assert "and 13 more, in the table" in page
    assert "org.plant.Reading sensor. All their values count as empty." in page
    assert "What stays closed" not in PAGES["what-if, nothing"]
    page = PAGES["audit"]
    assert "12,345" in page
    assert "There is more than is shown" in page
    for why in ("no credential", "cert.expired"):
        assert f"<bdi>{why}</bdi>" in page
    # Requests and events are counted in charts of their own.
    requests, events = (
        re.findall(r"</i>([\d,]+)</span>", _figure(page, title))
        for title in ("Refused requests", "Events that did not pass")
    )
    assert (requests, events) == (["6", "6", "1", "1"], ["1,001", "1,001"])
    assert "3,000" in page.split("Time to revoke")[1]
    assert "no revocations in this period" in PAGES["audit, nothing"]
    # Periods lie where they belong in time: 40 of them, every second one empty.
    assert "2026-05-01 12:00" in page
    assert page.count('class="a"/>') >= 40


@pytest.mark.parametrize("hours", [1, 2, 11, 40, 24 * 366])
def test_periods_lie_where_they_belong_in_time_and_labels_do_not_overlap(hours: int) -> None:
    two = ReportTable(
        ("start", "permit", "deny", "indeterminate"), ((NOON, 3, 0, 0), (NOON + timedelta(hours=hours), 0, 1, 0))
    )
    plot = audit_html(replace(REPORT, over_time=two)).split("<svg", 2)[1]
    assert plot.count('class="a"/>') == plot.count('class="b"/>') == 1
    first, second = (float(x) for x in re.findall(r'<rect x="([\d.]+)"', plot))
    step = (860 - 60) / max(hours + 1, 12)
    assert second - first == pytest.approx(hours * step, abs=0.2)
    labels = [float(x) for x in re.findall(r'x="([\d.]+)" y="210"', plot)]
    assert labels[0] == 60
    assert all(after - before >= 120 for before, after in pairwise(labels))
    assert labels[-1] <= 860 - 120


def test_long_labels_keep_what_tells_them_apart() -> None:
    names = ["Statistics Office, which is asking for the plate", "Statistics Office, which is asking for the location"]
    drawn = pages.bars("Bars", [(2 * name, 1) for name in names], "a")
    assert [label.split()[-1] for label in re.findall(r">([^<]+…[^<]+)</bdi>", drawn)] == ["plate", "location"]
    drawn = pages.flows("Flows", [pages.FlowBand("a", name, "b", 1) for name in names])
    assert [label.split()[-1] for label in re.findall(r">([^<]+…[^<]+)</bdi>", drawn)] == ["plate", "location"]


def test_what_is_gained_and_lost_flows_from_the_type_to_the_reader_and_from_the_publisher_to_the_type() -> None:
    drawn = _figure(PAGES["what-if"], "On how many events")
    told = re.findall(r'<path class="(.)".*?<title>(.*?)</title>', drawn)
    assert ("a", "org.plant.Reading → calm: value +5") in told
    assert ("b", "org.plant.Reading → calm: value −42") in told
    publisher = VisibilityChange(AffectedReader(str(READER), READER, KEY), None, "", 3, 0, right=Right.PUBLISH)
    page = whatif_html(replace(COMPARISON, changes=(publisher,)), names=Petnames({READER: "meter"}))
    assert "<title>meter → org.plant.Reading: whole events +3</title>" in page


def test_principals_are_shown_by_petname() -> None:
    page = whatif_html(COMPARISON, names=Petnames({READER: "the reader"}))
    assert "the reader" in page
    assert str(READER) not in page
    assert READER.short in whatif_html(COMPARISON)
    assert "the owner &#x27;staff&#x27;" in audit_html(REPORT, names=Petnames({OWNER: "the owner"}))


def test_the_same_facts_give_the_same_page() -> None:
    assert whatif_html(COMPARISON, names=NAMES) == PAGES["what-if"]
    assert audit_html(REPORT, names=NAMES) == PAGES["audit"]
    assert "Made" not in PAGES["audit"]
    assert "Made 2026-05-01 12:00 UTC" in audit_html(REPORT, at=NOON)
    with pytest.raises(MalformedError) as caught:
        whatif_html(COMPARISON, at=NOON.replace(tzinfo=None))
    assert caught.value.code == "value.zone"


def test_flows_are_drawn_between_a_box_for_each_sender_and_each_receiver() -> None:
    bands = [
        pages.FlowBand("a", "b", "publish", 400),
        pages.FlowBand("c<d", "b", "subscribe", 100, "b"),
        pages.FlowBand("a", "e", "subscribe", 1),
    ]
    drawn = ET.fromstring(pages.flows("Flows", bands))  # noqa: S314  # our own page
    assert [text.text for text in drawn.iter("bdi")] == ["a", "c<d", "publish", "subscribe", "subscribe", "b", "e"]
    paths = list(drawn.iter("{http://www.w3.org/2000/svg}path"))
    ends = [
        (re.findall(r"-?[\d.]+", path.get("d", ""))[1], re.findall(r"-?[\d.]+", path.get("d", ""))[-1])
        for path in paths
    ]
    # Flows of one box are together: those of `a` first, then that of `c<d`.
    assert ends == [("24", "24"), ("120", "72"), ("72", "120")]
    assert [path.get("stroke-width") for path in paths] == ["16.0", "8.0", "1.5"]
    assert [path.get("class") for path in paths] == ["a", "b", "a"]
    assert "and 5 more, in the table" in pages.flows("Flows", bands[:1] * 25)
    assert pages.flows("Flows", []) == ""


def test_rows_of_wide_tables_can_be_read_as_lists() -> None:
    names = ("rule", "certain", "last", "rules", "other")
    drawn = pages.table("Rules", names, [("r<1", True, NOON, 3, False)])
    cells = re.findall(r'<td[^>]* data-of="(.*?)">(?:<bdi>)?(.*?)<', drawn)
    assert cells == [
        ("rule", "r&lt;1"), ("certain", "yes"), ("last (UTC)", "2026-05-01 12:00"), ("rules", "3"), ("other", "no")
    ]  # fmt: skip
    assert "data-of" not in pages.table("Rules", names[:4], [("r", True, NOON, 3)])
