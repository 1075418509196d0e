"""Demands that rules in force make although their publishers did not state them.

A rule takes on a demand for the sake of another rule, on its own event type or on one above or below. The demand lasts
as long as a rule in force states it: on the same event type, or on types that are connected with it by rules that make
the same demand. Without one, it is unfounded (`unfounded`), and taken out where a rule goes (`removal`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from penstock.model.names import TypeKey
from penstock.model.tree import TypeTree
from penstock.moderator.conflicts import Function
from penstock.moderator.deltas import Change, Standing
from penstock.moderator.lists import AttributeList, parts
from penstock.moderator.rules import PublishRule
from penstock.selector import Selector

Demand: TypeAlias = tuple[Function, Selector]
"""A part of one of the functions of a rule."""


class ImposedDemands:
    """Which rules in force make a demand that their publishers did not state."""

    def __init__(self) -> None:
        self._holders: dict[Demand, set[str]] = {}

    def __iter__(self) -> Iterator[Demand]:
        """Yield the demands that are made without being stated."""
        return iter(self._holders)

    def holders(self, demand: Demand) -> Collection[str]:
        """Return the rules that make a demand and do not state it, by their ids."""
        return self._holders.get(demand, ())

    def change(self, changes: Mapping[str, Change[Standing]]) -> None:
        """Follow how rules stand."""
        for rule_id, change in changes.items():
            for demand in () if change.before is None else imposed_on(change.before):
                holders = self._holders[demand]
                holders.discard(rule_id)
                if not holders:
                    del self._holders[demand]
            for demand in () if change.after is None else imposed_on(change.after):
                self._holders.setdefault(demand, set()).add(rule_id)


def imposed_on(standing: Standing) -> frozenset[Demand]:
    """Return what a rule in force demands and its publisher did not state."""
    form, stated = standing.form, standing.stated
    if form is None or (form.fnc_p == stated.fnc_p and form.fnc_s == stated.fnc_s):
        return frozenset()
    return _demands(form, _made) - stated_by(stated)


def stated_by(rule: PublishRule) -> frozenset[Demand]:
    """Return what a rule demands, as it is written and as an attribute list has it."""
    return _demands(rule, _written)


def _demands(rule: PublishRule, of: Callable[[Selector], Iterable[Selector]]) -> frozenset[Demand]:
    return frozenset(
        (*((Function.P, part) for part in of(rule.fnc_p)), *((Function.S, part) for part in of(rule.fnc_s)))
    )


@lru_cache(maxsize=4096)
def _made(selector: Selector) -> tuple[Selector, ...]:
    return parts(selector)


@lru_cache(maxsize=4096)
def _written(selector: Selector) -> tuple[Selector, ...]:
    listed = AttributeList.from_selector(selector)
    return (*_made(selector), *(() if listed is None else (entry.selector for entry in listed.entries)))


def unfounded(
    demands: Iterable[Demand],
    known: ImposedDemands,
    standings: Mapping[str, Standing],
    tree: TypeTree,
    keeps: Callable[[Standing, Demand], bool],
) -> Iterator[tuple[Demand, frozenset[str]]]:
    """Yield the demands for which no rule in force is the reason, with the ids of those that make them.

    A rule that `keeps` a demand, since its own statement implies it, is a reason for it.
    """
    held = {demand: known.holders(demand) for demand in dict.fromkeys(demands)}
    held = {demand: holders for demand, holders in held.items() if holders}
    if not held:
        return
    reasons: dict[Demand, set[TypeKey]] = {demand: set() for demand in held}
    for standing in standings.values():
        if standing.form is not None:
            for demand in held.keys() & stated_by(standing.stated):
                reasons[demand].add(standing.stated.event)
    for demand, holders in sorted(held.items(), key=lambda each: (each[0][0], each[0][1].text)):
        makers = {rule_id: standings[rule_id] for rule_id in sorted(holders)}
        sources = reasons[demand].union(each.stated.event for each in makers.values() if keeps(each, demand))
        founded = _connected(sources, {each.stated.event for each in makers.values()}, tree)
        without = frozenset(rule_id for rule_id, each in makers.items() if each.stated.event not in founded)
        if without:
            yield demand, without


def _connected(sources: Collection[TypeKey], others: Collection[TypeKey], tree: TypeTree) -> frozenset[TypeKey]:
    """Return the types that are connected with a source: each with those above and below it that are among them all."""
    among = {*sources, *others}
    near: dict[TypeKey, set[TypeKey]] = {event: set() for event in among}
    for event in among:
        for over in tree.ancestors(event):
            if over in among:
                near[event].add(over)
                near[over].add(event)
    found, waiting = {*sources}, [*sources]
    while waiting:
        fresh = near[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return frozenset(found)
