"""Paths into documents end: whoever asks may bring one along."""

import sys

import pytest

from penstock.codec.limits import CodecLimits
from penstock.codec.xml_text import XmlContent, read_xml
from penstock.errors import EvaluationError

CONTENT = XmlContent(read_xml(b"<a>" + b"<b><c>1</c></b>" * 100 + b"</a>"), CodecLimits(policy_path=100_000))


def select(path: str, version: str = "") -> list[str | None]:
    return [CONTENT.text(node) for node in CONTENT.select(path, [], version)]


@pytest.mark.parametrize(
    "path",
    [
        "//*[//*[//*[//*]]]",
        "some $x in //*, $y in //*, $z in //*, $u in //* satisfies $x = 'q'",
        "count(for $i in 1 to 9999, $j in 1 to 9999 return $i)",
        "1 to 999999999999",
        "count(1 to 999999999999)",
        "string-join(for $i in 1 to 99999999 return 'a', '')",
        "matches('" + "a" * 50 + "!', '(a+)+$')",
        "/a" * 6_000,
    ],
)
def test_paths_that_take_for_ever_have_no_value(path: str) -> None:
    before = sys.getprofile()
    with pytest.raises(EvaluationError):
        CONTENT.select(path, [], "")
    assert sys.getprofile() is before


def test_the_older_paths_are_counted_too() -> None:
    with pytest.raises(EvaluationError):
        CONTENT.select("//*[//*[//*[//*]]]", [], "http://www.w3.org/TR/1999/REC-xpath-19991116")


def test_others_are_as_they_were() -> None:
    assert select("count(//c)") == ["100"]
    assert select("/a/b[position() = 2 to 3]/c") == ["1", "1"]
    assert select("count(for $i in 1 to 10 return $i)") == ["10"]
    assert select("(3 to 1)") == []


RECORD = XmlContent(read_xml(b"<r xmlns='urn:r'><a id='1'>x<b>y</b>z</a><a id='2' k='3'/></r>"))
NODES = "//node() | //@*"


def test_nodes_are_found_again_by_their_paths() -> None:
    found = RECORD.select(NODES, [], "")
    assert len(found) == 10
    for node in found:
        for version in ("", "http://www.w3.org/TR/1999/REC-xpath-19991116"):
            (again,) = RECORD.select(RECORD.path(node), [], version)
            assert again is node


def test_nodes_lie_within_others() -> None:
    (text,) = RECORD.select("//*[local-name() = 'b']/text()", [], "")
    kinds = [RECORD.path(one) for one in RECORD.around(text)]
    assert kinds == ["/*[1]/*[1]/*[1]/text()[1]", "/*[1]/*[1]/*[1]", "/*[1]/*[1]", "/*[1]", "/"]
    (attribute,) = RECORD.select("//@k", [], "")
    assert [RECORD.path(one) for one in RECORD.around(attribute)] == ["/*[1]/*[2]/@*[2]", "/*[1]/*[2]", "/*[1]", "/"]
    (number,) = RECORD.select("count(//*)", [], "")
    assert [*RECORD.around(number)] == []
    assert RECORD.text(number) == "4"
