"""A mistyped word is refused with the word that was probably meant, and with the code that it always had."""

import pytest
from tests.apps.conftest import Shell

from penstock.apps.cli.main import MEANT

POLICY = """
attribute role { category = subject id = "r" type = string }
policy p {
    apply permit-overrides
    rule a { permit condition string-equal(string-one-and-only(role), "a") }
}
"""
WRONG = {
    "a.policy": ("= string }", "= strng }"),
    "b.policy": ("= subject", "= subjct"),
    "c.policy": ("overrides", "overides"),
    "d.policy": ("string-equal", "string-equl"),
    "e.policy": ("only(role)", "only(roel)"),
}

CASES = {
    "a noun": ("explan", "cli.usage", "`explain`"),
    "a verb": ("cert isue", "cli.usage", "`issue`"),
    "a verb of another noun": ("cert revoke b.cert", "cli.usage", "`penstock net revoke`"),
    "a network, from nothing": ("up", "cli.usage", "hint: `penstock init`"),
    "a job": ("pipeline ingst", "cli.usage", "`ingest`"),
    "an option": ("cert show b.cert --nams x", "cli.usage", "`--names`"),
    "an old option": ("cert issue --forse x=1", "cli.usage", "hint: `penstock cert issue --help` shows how"),
    "a choice": ("cert show b.cert -o jsn", "cli.usage", "`json`"),
    "a shell": ("completion bsh", "cli.usage", "`bash`"),
    "a right": ("cert issue --key a.key --to grid --type grid/B --right publsh", "cli.usage", "`publish`"),
    "a cipher": ("seal x --algorithm aes-gmc", "cli.usage", "`aes-gcm`"),
    "a strategy": ("moderator resolve r --by folow", "cli.usage", "`follow`"),
    "a kind": ("type new C --key a.key --attribute speed:strng", "cli.attribute", "`string`"),
    "another case": ("type new C --key a.key --attribute speed:Integer", "cli.attribute", "`integer`"),
    "an attribute": (
        "cert issue --key a.key --to grid --type-file b.type --right subscribe --attribute sped",
        "type.unknown-attribute",
        "`speed`",
    ),
    "an attribute to set": (
        "cert issue --key a.key --to grid --type-file b.type --right publish --set sped=1",
        "type.unknown-attribute",
        "`speed`",
    ),
    "an attribute of a selector": ("selector check sped>1 --type-file b.type", "selector.unknown-attribute", "`speed`"),
    "a value of an event": (
        "selector evaluate speed>1 --type-file b.type --set sped=1",
        "event.unknown-attribute",
        "`speed`",
    ),
    "a type of a policy": ("policy check a.policy", "xacml.type", "`string`"),
    "a category": ("policy check b.policy", "xacml.syntax", "`subject`"),
    "an algorithm of a policy": ("policy check c.policy", "xacml.combining", "`permit-overrides`"),
    "a function": ("policy check d.policy", "xacml.function", "`string-equal`"),
    "a declared attribute": ("policy check e.policy", "xacml.attribute", "`role`"),
    "an algorithm": ("policy combine --by deny-overides P D", "xacml.combining", "`deny-overrides`"),
    "a petname": ("cert issue --key a.key --to gird --type grid/B --right publish", "principal.unknown", "`grid`"),
    "a petname to remove": ("name remove gird", "petname.unknown", "`grid`"),
    "a selector": ("sub power>1", "cli.usage", 'hint: choose events with `--where "power>1"`'),
    "a type": ("sub grid/B", "cli.usage", "hint: choose a type with `--type grid/B`"),
    "an argument": ("sub grid", "cli.usage", "hint: `penstock sub --help` shows how"),
    "a context": ("context show dmo", "context.unknown", "`demo`"),
}


@pytest.mark.parametrize(("line", "code", "meant"), CASES.values(), ids=CASES)
def test_it_says_what_was_meant(penstock: Shell, line: str, code: str, meant: str) -> None:
    penstock.ok("key", "new", "a.key", "--name", "grid")
    penstock.ok("type", "new", "B", "--key", "a.key", "--attribute", "speed:integer", "--out", "b.type")
    penstock.ok("context", "add", "demo", "--broker", "penstock://127.0.0.1:1")
    for file, (right, wrong) in WRONG.items():
        (penstock.folder / file).write_text(POLICY.replace(right, wrong))
    ran = penstock(*line.split())
    assert ran.code == code, ran.err
    hint = ran.err.rpartition("hint: ")[2]
    assert hint.startswith(f"did you mean {meant}") or f"hint: {hint}".startswith(meant), ran.err


@pytest.mark.parametrize("word", MEANT)
def test_words_of_newcomers_lead_to_commands(penstock: Shell, word: str) -> None:
    assert f"hint: did you mean `penstock {MEANT[word]}`?" in penstock(word).err
    penstock.ok(*MEANT[word].split(), *(() if MEANT[word] == "--help" else ("--help",)))


def test_nothing_is_suggested_for_what_resembles_nothing(penstock: Shell) -> None:
    ran = penstock("zzz")
    assert ran.err == "error: no such command `zzz` [cli.usage]\nhint: `penstock --help` lists all\n"
