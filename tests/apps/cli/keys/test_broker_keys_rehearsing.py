"""What `--dry-run` says that a change of keys would concern, from what a broker tells of itself."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.trust.kit import refused, who

from penstock.apps.cli.keys.broker_keys import evicted, forgotten, joined, of_manager, rotated
from penstock.errors import RefusedError
from penstock.model.names import TypeKey

TYPE, OTHER = TypeKey(who(1), "org.Car"), TypeKey(who(1), "org.Truck")
EAST, WEST = who(2), who(3)
BEGUN = datetime(2026, 5, 1, 12, tzinfo=UTC)


def group(attribute: str, epoch: int, *holders: object, of: TypeKey = TYPE) -> dict[str, Any]:
    told = {"type": str(of), "attribute": attribute, "epoch": epoch, "begun": BEGUN, "until": None}
    return {**told, "members": len(holders), "holders": [str(one) for one in holders]}


STATUS: dict[str, Any] = {
    "managed": {
        "car": group("", 4, EAST, WEST),
        "car#0": group("plate", 2, EAST),
        "car labels": group("(labels)", 1, EAST, WEST),
        "truck": group("", 7, WEST, of=OTHER),
    }
}


def test_epochs_that_would_begin() -> None:
    assert {scope: one["then"] for scope, one in rotated(STATUS, TYPE, "").items()} == {"car": 5, "car#0": 3}
    assert [*rotated(STATUS, TYPE, "plate")] == ["car#0"]
    assert [*rotated(STATUS, TYPE, "(labels)")] == ["car labels"]
    for of_type, attribute in ((TypeKey(who(9), "org.Car"), ""), (TYPE, "speed")):
        with refused("keys.not-managed"):
            rotated(STATUS, of_type, attribute)
    with refused("keys.not-managed"):
        rotated({}, TYPE, "")


def test_holders_that_would_be_left() -> None:
    found = evicted(STATUS, TYPE, "", WEST)
    assert {scope: (one["then"], one["holders"]) for scope, one in found.items()} == {
        "car": (5, [str(EAST)]),
        "car labels": (2, [str(EAST)]),
    }
    with refused("keys.not-member"):
        evicted(STATUS, TYPE, "plate", WEST)


def test_epochs_that_would_be_forgotten() -> None:
    late, early = BEGUN + timedelta(seconds=1), BEGUN
    assert {scope: one["forgotten"] for scope, one in forgotten(STATUS, late).items()} == {
        "car": {"last": 3, "all": True},
        "car#0": {"last": 1, "all": True},
        "car labels": {"last": 0, "all": True},
        "truck": {"last": 6, "all": True},
    }
    assert forgotten(STATUS, early)["car"]["forgotten"] == {"last": 2, "all": False}
    assert forgotten(STATUS, early)["car#0"]["forgotten"] == {"last": 0, "all": False}


def test_what_would_be_refused_is_refused() -> None:
    hidden: dict[str, Any] = {"managed": {scope: {**one} for scope, one in STATUS["managed"].items()}}
    del hidden["managed"]["car#0"]["holders"]
    with refused("keys.not-manager"):
        rotated(hidden, TYPE, "")
    with refused("keys.not-manager"):
        evicted(hidden, TYPE, "", EAST)
    with refused("keys.not-manager"):
        forgotten(hidden, BEGUN)
    assert of_manager(RefusedError("broker.not-operator", "no")).code == "keys.not-manager"
    assert of_manager(RefusedError("client.lost", "no")).code == "client.lost"
    with refused("broker.not-operator"):
        joined(STATUS)


def test_keys_that_would_be_asked_for() -> None:
    held: dict[str, Any] = {
        "car": {"epoch": 4, "seals": True},
        "car#0": {"epoch": 0, "seals": False},
        "truck": {"epoch": 2},
    }
    assert [*joined({"held": held})] == ["car#0", "truck"]
