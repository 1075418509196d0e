"""The log of a node: who asked for what, and never a value, a filter or a restriction."""

import json
from datetime import UTC, datetime, timedelta

from penstock.apps.node.limits import NodeLimits
from penstock.apps.node.logs import Log
from penstock.broker.local.requests import ClientRequest, Detail, MissingRight, RequestReport, Verb
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Petnames
from penstock.selector import parse
from penstock.trust.capabilities import Right

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
READER, OWNER = (SigningKey(bytes([i]) * 32).principal for i in (31, 32))
NEWS = TypeName(OWNER, "News")
ASKED = ClientRequest(Verb.SUBSCRIBE, NEWS, "s1", parse("secret = 'x-constant'"))
DETAIL = Detail(
    ((TypeKey(OWNER, "News"), {"where": "place = 'x-constant'"}),),
    (MissingRight(Right.SUBSCRIBE, NEWS, ("headline",)),),
    ("cert.expired",),
)


def refused(code: str = "broker.not-permitted") -> RequestReport:
    return RequestReport("7", READER, ASKED, DETAIL, code)


def logged(*reports: RequestReport | RefusedError, quiet: bool = False) -> list[str]:
    lines: list[str] = []
    log = Log(
        lines.append,
        lambda: NOW,
        as_json=True,
        quiet=quiet,
        names=Petnames({READER: "reader", OWNER: "owner"}),
        limits=NodeLimits(),
    )
    for report in reports:
        log.note(report)
    log.as_json = False
    for report in reports:
        log.note(report)
    return lines


def test_a_refusal_for_programs_and_for_people() -> None:
    for_programs, for_people = logged(refused())
    assert json.loads(for_programs) == {
        "time": "2026-05-01T12:00:00.000Z",
        "level": "warning",
        "event": "refused",
        "code": "broker.not-permitted",
        "session": "7",
        "principal": str(READER),
        "asked": "subscribe",
        "about": str(NEWS),
        "missing": [{"right": "subscribe", "about": str(NEWS), "attributes": ["headline"]}],
        "problems": ["cert.expired"],
    }
    assert for_people.startswith("2026-05-01T12:00:00.000Z warning refused code=broker.not-permitted session=7 ")
    assert "principal=reader asked=subscribe about=owner/News@0" in for_people


def test_a_request_that_is_granted_in_part_does_not_look_like_an_error() -> None:
    for_programs, for_people = logged(refused(""))
    assert json.loads(for_programs)["missing"][0]["attributes"] == ["headline"]
    assert "missing" not in for_people
    assert " withheld=headline" in for_people


def test_no_line_holds_a_constant() -> None:
    for line in logged(refused(), refused(""), RefusedError("link.flood", "too much")):
        assert "x-constant" not in line


def test_quiet_leaves_out_what_stands() -> None:
    assert len(logged(refused(""), refused(), quiet=True)) == 2
    assert len(logged(refused(""), refused())) == 4


def test_what_others_write_begins_no_line() -> None:
    _, for_people = logged(RefusedError("link.flood", "a\nforged line"))
    assert "\n" not in for_people


def test_so_many_lines_a_second_and_no_more() -> None:
    lines: list[str] = []
    now = [NOW]
    log = Log(lines.append, lambda: now[0], as_json=True, limits=NodeLimits(log_lines=3))
    for _ in range(10):
        log.note(refused())
    assert len(lines) == 3
    now[0] += timedelta(seconds=1)
    log.note(refused())
    assert [json.loads(line)["event"] for line in lines[3:]] == ["left-out", "refused"]
    assert json.loads(lines[3])["lines"] == 7
