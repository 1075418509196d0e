"""`penstock topic`: new, show, verify, grant; and `penstock explain` by the hierarchical rule."""

from pathlib import Path

import pytest
from tests.apps.conftest import Shell

ABOVE = ("--super-topic", "news.topic", "--super-topic", "sport.topic")
TENNIS = ("--type-file", "tennis.topic", "--parent", "news.topic", "--parent", "sport.topic")
END = ("--not-after", "2100-01-01")


@pytest.fixture
def agency(penstock: Shell) -> Shell:
    """An agency with three topics, a reporter and a reader."""
    for name in ("agency", "reporter", "reader"):
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    for path, above in (("news", ()), ("news/sport", ABOVE[:2]), ("news/sport/tennis", ABOVE)):
        penstock.ok("topic", "new", path, "--key", "agency.key", *above, "--out", f"{path.rpartition('/')[2]}.topic")
    return penstock


def test_new_prints_or_writes_or_rehearses(agency: Shell) -> None:
    line = ("topic", "new", "weather", "--key", "agency.key")
    shown = agency.ok(*line).out
    assert agency.ok(*line, "--out", "w.topic").out.splitlines() == ["wrote w.topic", "agency/weather"]
    assert Path("w.topic").read_text() == shown
    assert agency(*line, "--out", "w.topic").code == "file.exists"
    agency.ok(*line, "--out", "x.topic", "--dry-run")
    assert not Path("x.topic").exists()
    data = agency.ok(*line, "-o", "json").json
    assert (data["path"], data["super_topics"], data["type"]["name"]) == ("weather", [], "topic.weather")


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        (("new", "news//sport"), 2, "topic.malformed"),
        (("new", "news/**"), 2, "topic.malformed"),
        (("new", "/".join("a" * 33)), 2, "topic.limit"),
        (("new", "news/weather"), 1, "type.unknown-parent"),
        (("new", "news", "--owner", "reader"), 1, "type.forged"),
        (("grant", "news/*", "--to", "reader", "--right", "subscribe"), 2, "topic.pattern"),
        (("grant", "news/sp**", "--to", "reader", "--right", "subscribe"), 2, "topic.pattern"),
        (("grant", "news", "--right", "subscribe"), 2, "cli.subject"),
        (("grant", "news", "--to", "reader", "--right", "connect"), 2, "cli.usage"),
        (("grant", "news", "--to", "reader"), 2, "cli.usage"),
    ],
)
def test_bad_input(agency: Shell, line: tuple[str, ...], status: int, code: str) -> None:
    ran = agency("topic", *line, "--key", "agency.key")
    assert (ran.status, ran.code) == (status, code)


def test_show(agency: Shell) -> None:
    shown = agency.ok("topic", "show", "tennis.topic").out
    for word in ("news/sport/tennis", "agency", "part of     news/sport", "topic.news.sport.tennis", "not verified"):
        assert word in shown
    data = agency.ok("topic", "show", "tennis.topic", "-o", "json").json
    assert data["super_topics"] == ["news/sport", "news"]
    assert agency.ok("topic", "show", "tennis.topic", "-o", "sexp").out == Path("tennis.topic").read_text()
    altered = Path("tennis.topic").read_text().replace("tennis", "sluice")
    Path("altered.topic").write_text(altered)
    assert "type.signature-mismatch" in agency.ok("topic", "show", "altered.topic").out
    assert agency("topic", "verify", "altered.topic", *ABOVE).code == "type.signature-mismatch"


def test_verify(agency: Shell) -> None:
    assert "✓ agency/news/sport/tennis" in agency.ok("topic", "verify", "tennis.topic", *ABOVE).out
    data = agency.ok("topic", "verify", "tennis.topic", *ABOVE, "-o", "json").json
    assert (data["ok"], data["path"], data["because"]) == (True, "news/sport/tennis", [])
    alone = agency("topic", "verify", "tennis.topic", "-o", "json")
    assert (alone.status, alone.json["ok"]) == (1, False)
    agency.ok("topic", "verify", "news.topic", "--network", "agency/Wire")
    assert agency("topic", "verify", "news.topic", "--network", "reader/Wire").code == "type.not-installable"


def test_types_and_topics_are_told_apart(agency: Shell) -> None:
    agency.ok("type", "new", "News", "--key", "agency.key", "--attribute", "a:string", "--out", "a.type")
    for verb in ("show", "verify"):
        assert agency("topic", verb, "a.type").code == "topic.type"
    line = ("type", "new", "topic.news", "--key", "agency.key", "--attribute", "a:string")
    assert agency(*line).code == "topic.definition"
    line = ("type", "new", "Flash", "--key", "agency.key", "--extends", "news.topic")
    assert agency(*line).code == "topic.definition"


def test_a_manager_makes_topics_by_certificate(agency: Shell) -> None:
    grant = ("topic", "grant", "news/sport", "news/sport/**", "--key", "agency.key", "--to", "reporter")
    agency.ok(*grant, "--right", "manage", *END, "--out", "manager.cert")
    line = ("topic", "new", "news/sport/chess", "--owner", "agency", "--key", "reporter.key", *ABOVE)
    assert agency(*line).code == "type.forged"
    agency.ok(*line, "--credential", "manager.cert", "--out", "chess.topic")
    shown = agency.ok("topic", "verify", "chess.topic", *ABOVE).out
    assert "✓ agency → reporter: manage on agency/" in shown
    assert agency.ok("topic", "verify", "chess.topic", *ABOVE, "-o", "json").json["not_after"][:4] == "2100"
    assert agency(*line, "--unchecked", "--out", "forged.topic").status == 0
    assert agency("topic", "verify", "forged.topic", *ABOVE).code == "type.forged"


def grant(agency: Shell, file: str, to: str, right: str, *patterns: str) -> str:
    """Give a right, and return what was said besides the answer."""
    line = ("topic", "grant", *patterns, "--key", "agency.key", "--to", to, "--right", right, *END)
    return agency.ok(*line, "--out", file).err


def test_grant_says_what_publishing_needs(agency: Shell) -> None:
    assert "needs the right on `news`, `news/sport`;" in grant(
        agency, "1.cert", "reporter", "publish", "news/sport/tennis"
    )
    assert "needs the right on `news`;" in grant(agency, "2.cert", "reporter", "publish", "news/**")
    for index, patterns in enumerate([("news", "news/**"), ("news",), ("**",)]):
        assert grant(agency, f"good{index}.cert", "reporter", "publish", *patterns) == ""
    assert grant(agency, "3.cert", "reader", "subscribe", "news/sport") == ""
    line = ("topic", "grant", "news/sport", "--key", "agency.key", "--to", "reporter", "--right", "publish", *END)
    data = agency.ok(*line, "--with-super-topics", "-o", "json").json
    assert (sorted(data["grants"]["name"]), data["warnings"]) == (["topic.news", "topic.news.sport"], [])


def test_explain_asks_about_every_super_topic(agency: Shell) -> None:
    grant(agency, "below.cert", "reporter", "publish", "news/sport/**")
    grant(agency, "above.cert", "reporter", "publish", "news")
    grant(agency, "between.cert", "reporter", "publish", "news/sport")
    asked = ("explain", "--principal", "reporter", "--right", "publish", "--credential", "below.cert")
    for by in (TENNIS, ("--type", "agency/topic.news.sport.tennis")):
        first = agency(*asked, *by)
        assert (first.status, "may not publish topic.news@0" in first.err) == (1, True)
        second = agency(*asked, *by, "--credential", "above.cert")
        assert (second.status, "may not publish topic.news.sport@0" in second.err) == (1, True)
        agency.ok(*asked, *by, "--credential", "above.cert", "--credential", "between.cert")


def test_explain_asks_about_the_topic_alone_for_subscribers(agency: Shell) -> None:
    grant(agency, "reader.cert", "reader", "subscribe", "news/sport")
    asked = ("explain", "--principal", "reader", "--right", "subscribe", "--credential", "reader.cert")
    told = agency.ok(*asked, "--type-file", "sport.topic", "--parent", "news.topic", "-o", "json").json
    assert [answer["question"] for answer in told["answers"]] == ["subscribe to topic.news.sport@0"]
    assert agency(*asked, "--type-file", "news.topic").status == 1
