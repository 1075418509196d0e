"""The labels of one broker: which are known, which are used, and when that changes."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.broker.blinded_kit import CAR, CAR_MADE, LIMITS, LORRY, NOW, OVERLAP, SIGNED, label_key, version

from penstock.broker.blinding import Labels
from penstock.broker.limits import BrokerLimits
from penstock.broker.local.type_library import Library
from penstock.codec.blocks import PlainNames, names, write_route
from penstock.crypto.blinding import blind, blinded_key, label
from penstock.errors import RefusedError
from penstock.model.names import TypeKey

SECOND = timedelta(seconds=1)


class Held:
    """Labels with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOW
        self.library = Library(limits=BrokerLimits())
        for signed in SIGNED:
            self.library.add(signed, NOW)
        self.labels = Labels(self.library, lambda: self.now, LIMITS)

    def put(self, number: int, seconds: float | None = 0.0) -> None:
        begun = None if seconds is None else NOW + seconds * SECOND
        self.labels.put(CAR.key, number, label_key(number), begun)

    def at(self, seconds: float) -> Labels:
        self.now = NOW + seconds * SECOND
        self.labels.tick()
        return self.labels


def tree(number: int) -> TypeKey:
    return blinded_key(label(label_key(number), str(CAR.key)))


def test_a_type_that_is_not_blinded_goes_by_its_name() -> None:
    held = Held()
    other = TypeKey(CAR.key.owner, "uk.gov.pito.Camera")
    assert held.labels.trees(other) == held.labels.line(other) == [other]
    assert held.labels.trees(CAR.key) == []


def test_the_first_label_is_used_at_once() -> None:
    held = Held()
    held.put(1)
    assert held.labels.in_use(CAR.key) == tree(1)
    assert held.labels.type_of(tree(1)) == CAR.key
    assert held.labels.type_of(tree(2)) is None


def test_an_old_label_is_used_for_half_of_the_overlap_and_known_for_all_of_it() -> None:
    held = Held()
    held.put(1)
    held.put(2, 1000)
    for seconds, used, known in (
        (1000, 1, [1, 2]),
        (1000 + OVERLAP / 2 - 1, 1, [1, 2]),
        (1000 + OVERLAP / 2, 2, [1, 2]),
        (1000 + OVERLAP - 1, 2, [1, 2]),
        (1000 + OVERLAP, 2, [2]),
    ):
        labels = held.at(seconds)
        assert (labels.in_use(CAR.key), labels.trees(CAR.key)) == (tree(used), [tree(one) for one in known]), seconds


def test_who_comes_late_goes_by_the_clock_and_not_by_when_it_heard() -> None:
    held = Held()
    held.put(1)
    held.at(OVERLAP / 2 + 10)
    held.put(2, 5)
    assert held.labels.in_use(CAR.key) == tree(2)


def test_an_old_key_is_missed_only_while_others_use_it() -> None:
    held = Held()
    assert held.labels.missing(CAR.key) is None
    held.put(1)
    assert held.labels.missing(CAR.key) is None, "nothing was before the first"
    held.labels.drop(CAR.key, 1)
    held.put(7, 0)
    assert held.labels.in_use(CAR.key) == tree(7)
    assert held.labels.missing(CAR.key) == 6
    held.put(6, None)
    assert held.labels.missing(CAR.key) is None
    assert held.labels.in_use(CAR.key) == tree(6), "as all others do"
    held.labels.drop(CAR.key, 6)
    assert held.at(OVERLAP).missing(CAR.key) is None


def test_who_loses_the_newest_key_loses_those_before_it() -> None:
    held = Held()
    held.put(2)
    held.put(1, None)
    assert held.labels.trees(CAR.key) == [tree(1), tree(2)]
    held.labels.drop(CAR.key, 2)
    assert held.labels.trees(CAR.key) == []
    assert held.labels.type_of(tree(1)) is None


def test_the_version_tells_of_every_change() -> None:
    held = Held()
    seen = [held.labels.version]

    def changed() -> bool:
        seen.append(held.labels.version)
        return seen[-1] != seen[-2]

    held.put(1)
    assert changed()
    held.at(10)
    assert not changed()
    held.put(2, 10)
    assert changed()
    held.at(10 + OVERLAP / 2)
    assert changed(), "another label is used"
    held.at(10 + OVERLAP)
    assert changed(), "one is gone"
    held.labels.drop(CAR.key, 1)
    assert not changed()
    held.library.remove(LORRY.name)
    assert changed()


def test_routes_are_found_again_under_every_key_that_is_held() -> None:
    held = Held()
    found = names(LORRY.key, (CAR.key,), tuple(str(attribute.id) for attribute in LORRY.attributes))
    plain = write_route(PlainNames(found))
    for number in (1, 2):
        held.labels.put(LORRY.key, number, label_key(number, LORRY.key), NOW)
        lorries = blinded_key(label(label_key(number, LORRY.key), str(LORRY.key)))
        route = blind(label_key(number, LORRY.key), found)
        assert held.labels.route(lorries, plain) == write_route(route)
        assert held.labels.resolve(route) == found
        assert held.labels.names(write_route(route)) == (lorries, plain)
    held.labels.drop(LORRY.key, 2)
    for refused in (
        lambda: held.labels.resolve(route),
        lambda: held.labels.names(write_route(route)),
        lambda: held.labels.route(tree(1), plain),
    ):
        with pytest.raises(RefusedError) as caught:
            refused()
        assert caught.value.code == "seal.unknown-label"


def test_attributes_of_a_version_that_comes_later_are_known() -> None:
    held = Held()
    held.put(1)
    colour = replace(CAR_MADE.attributes[0], name="colour", uid="9")
    wider = version(CAR_MADE, name=replace(CAR_MADE.name, version="1"), attributes=(*CAR_MADE.attributes, colour))
    found = names(CAR.key, (), (f"{CAR.key}#0", f"{CAR.key}#9"))
    route = blind(label_key(1), found)
    with pytest.raises(RefusedError):
        held.labels.resolve(route)
    held.library.add(wider, NOW)
    assert held.labels.resolve(route) == found


def test_nothing_secret_is_shown() -> None:
    held = Held()
    held.put(1)
    shown = repr(held.labels) + repr(held.labels.__dict__)
    assert repr(label_key(1).expose()) not in shown
    assert "Secret(…)" not in repr(held.labels)
