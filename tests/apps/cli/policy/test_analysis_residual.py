"""`penstock policy residual`: what it shows, and how it refuses."""

import json

from tests.apps.conftest import Shell

from penstock.policy.language.requests import SUBJECT

ROLE = "urn:penstock:subject:owner-role"
POLICY = f"""
attribute role {{ category = subject id = "{ROLE}" type = string }}
attribute which {{ category = resource id = "urn:penstock:attribute:name" type = string }}
attribute zone {{ category = resource id = "urn:penstock:event:zone" type = string }}
attribute speed {{ category = resource id = "urn:penstock:event:speed" type = integer }}
attribute hour {{ category = environment id = "urn:penstock:environment:hour" type = integer }}
attribute duty {{ category = environment id = "urn:penstock:environment:on_duty" type = boolean }}

policy plates {{
    apply permit-overrides
    rule police {{ permit target clause role == "police" on permit {{ obligation log }} }}
    rule billing {{ permit target clause role == "billing" clause zone == "charge" }}
    rule research {{
        permit
        target clause role == "research" clause which == "speed" or which == "zone"
        condition speed > 30 and hour >= 22
    }}
    rule warden {{ permit target clause role == "warden" condition duty }}
    rule maths {{ permit target clause role == "maths" condition speed * speed > 900 }}
}}
"""


def residual(penstock: Shell, role: str, *more: str) -> list[str]:
    if not (penstock.folder / "plate.type").exists():
        penstock.ok("key", "new", "pito.key")
        attributes = ("plate:string", "speed:integer:0..200", "zone:string:north|charge")
        chosen = [part for one in attributes for part in ("--attribute", one)]
        penstock.ok("type", "new", "uk.Plate", "--key", "pito.key", *chosen, "--out", "plate.type")
        (penstock.folder / "plates.policy").write_text(POLICY)
    return ["policy", "residual", "plates.policy", "--type-file", "plate.type", "--subject", f"{ROLE}={role}", *more]


def test_it_shows_a_restriction(penstock: Shell) -> None:
    assert (
        penstock.ok(*residual(penstock, "billing")).out
        == "✓ all attributes\n    where zone = 'charge'\n    by plates\n"
    )
    expected = "✓ speed, zone\n    where speed > 30\n    when hour >= 22\n    by plates\n"
    assert penstock.ok(*residual(penstock, "research")).out == expected
    found = penstock.ok(*residual(penstock, "research", "--right", "publish", "-o", "json")).json
    assert found["right"] == "publish"
    assert found["branches"] == [
        {
            "action": "publish",
            "attributes": ["speed", "zone"],
            "where": "speed > 30",
            "when": "hour >= 22",
            "because": ["policy:plates"],
        }
    ]


def test_nothing_permitted_is_a_refusal(penstock: Shell) -> None:
    done = penstock(*residual(penstock, "guest", "-o", "json"))
    assert (done.status, done.json["branches"]) == (1, [])
    # So is an obligation that nobody meets.
    assert penstock(*residual(penstock, "police")).code == "pdp.not-permitted"
    assert penstock.ok(*residual(penstock, "police", "--obligation", "log")).out == "✓ all attributes\n    by plates\n"


def test_brokers_know_facts(penstock: Shell) -> None:
    assert penstock(*residual(penstock, "warden")).code == "policy.residual-fragment"
    done = penstock.ok(*residual(penstock, "warden", "--fact", "on_duty:boolean"))
    assert "    when on_duty\n" in done.out


def test_what_cannot_be_said_is_named(penstock: Shell) -> None:
    done = penstock(*residual(penstock, "maths"))
    assert (done.status, done.code) == (1, "policy.residual-fragment")
    assert "rule `maths` of policy `plates`: function `integer-multiply`" in done.err
    assert penstock("policy", "residual", "plates.policy").code == "cli.type-file"


def test_the_rest_is_in_a_request(penstock: Shell) -> None:
    asked = residual(penstock, "nobody")
    category = {"CategoryId": SUBJECT, "Attribute": [{"AttributeId": ROLE, "Value": "billing"}]}
    (penstock.folder / "known.json").write_text(json.dumps({"Request": {"Category": [category]}}))
    done = penstock.ok(*asked[:-2], "--request", "known.json")
    assert "where zone = 'charge'" in done.out
