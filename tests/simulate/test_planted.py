"""Planted bugs for every checker: one line of production code is changed, found, and shrunk to a few lines."""

import os
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.simulate.planted import plant

from penstock.simulate.checkers import CHECKERS
from penstock.simulate.explore import explore
from penstock.simulate.run import run
from penstock.simulate.scenario import SimulationScenario

SHRUNK: Final = Path(__file__).parent / "planted_bugs"


class Bug(NamedTuple):
    """A line of a function, what is written instead, and the world and number of steps in which it is searched for."""

    target: str
    line: str
    instead: str
    world: str
    size: int = 60


#: by checker; where there are several, a dot and a word follow
BUGS: Final = {
    "no_delivery_after_revocation": Bug(
        "penstock.broker.core.core:Core.change_sources",
        "self.settle(self.local.change(self.now(), sources=sources))",
        "self.settle([] if any(sources.revocations.by_owner.values()) else "
        "self.local.change(self.now(), sources=sources))",
        "revocation",
    ),
    "no_delivery_after_revocation.trusted": Bug(
        "penstock.broker.keys.node_keys:Keys.reads_as_much",
        "return bool(held) and all(self._claims.may_hold(peer, group, look) for group in held)",
        "return bool(held)",
        "sealing",
        20,
    ),
    "only_allowed_deliveries": Bug(
        "penstock.broker.local.local_broker:ActiveRequests.work_out",
        "if last is not None and last.is_same(basis):",
        "if last is not None:",
        "revocation",
    ),
    "only_allowed_deliveries.masked": Bug(
        "penstock.guard.restriction:Branch.shows",
        "return self.attributes is None or attribute in self.attributes",
        "return True",
        "revocation",
        40,
    ),
    "no_acknowledged_change_lost": Bug(
        "penstock.authority.rulebook:RuleBook._take", "continue", "return plan", "rule-book", 40
    ),
    "events_once": Bug(
        "penstock.authority.rulebook_state:Rights.admit",
        "if value.serial <= self.serials.get(value.by, 0):",
        "if False:",
        "rule-book",
        40,
    ),
    "events_once.received": Bug(
        "penstock.broker.client.client:Subscription.take",
        "self._rows.extend(rows)",
        "self._rows.extend((*rows, *rows))",
        "brokers",
        40,
    ),
    "decisions_by_policies_in_force": Bug(
        "penstock.authority.decisions.decision_point:PolicyDecisionPoint.replace",
        "before, self._source = self._coverage, source",
        "before = self._coverage",
        "decisions",
    ),
    "recycled_answers_equal": Bug(
        "penstock.authority.decisions.secondary_point:AnswerCache.take",
        "report = recycler.change(signed.value)",
        "report = ChangeReport(0, 0)",
        "decisions",
    ),
    "key_groups_closed": Bug(
        "penstock.broker.keys.node_keys:Keys.rights_changed",
        "if not self._started:",
        "if not self._started or self._members:",
        "sealing",
        40,
    ),
    "key_groups_closed.evicted": Bug(
        "penstock.broker.keys.group:Wishes.need_epoch",
        "broker in state.members or (applicant.right.covers(begun) and broker not in state.evicted)",
        "broker in state.members or applicant.right.covers(begun)",
        "sealing",
        40,
    ),
    "no_mixed_configurations": Bug(
        "penstock.authority.components.points.configurations:ConfigurationTimeline.serving",
        "return past.configuration",
        "return self.current",
        "components",
        40,
    ),
    "no_role_outlives_conditions": Bug(
        "penstock.roles.engine:RoleEngine._end",
        "relying = self._dependents.pop(record.support, {})",
        "relying = {}",
        "roles",
    ),
    "no_access_after_statement": Bug(
        "penstock.trust.statement_book:_beat_status", "if until < now:", "if False:", "roles"
    ),
    "suspended_requests_end": Bug(
        "penstock.authority.components.points.pending_requests:PendingRequests._run",
        "until = None if waiting is None else self._over(number, waiting)",
        "until = None",
        "components",
        30,
    ),
    "replicas_converge": Bug(
        "penstock.authority.rulebook:RuleBook.refresh", "self._view.refresh()", "pass", "rule-book", 40
    ),
    "joins_end": Bug(
        "penstock.authority.components.points.component:Component._lose", "if again:", "if False:", "components", 40
    ),
}


def test_checkers_have_planted_bugs() -> None:
    assert {_checker(name) for name in BUGS} == {checker.__name__ for checker in CHECKERS}
    page = (Path(__file__).parents[2] / "docs/explanation/simulator.md").read_text()
    for bug in BUGS.values():
        assert f"`{bug.target.rpartition(':')[2]}`" in page, bug.target


#: brokers take seconds to start
_SLOW: Final = ("brokers", "revocation", "sealing")


def _checker(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if bug.world in _SLOW else []) for name, bug in BUGS.items()],
)
def test_a_shrunk_scenario_shows_the_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, text = BUGS[name], (SHRUNK / f"{name}.toml").read_text()
    scenario = SimulationScenario.parse(text)
    assert scenario.text() == text
    assert len(text.splitlines()) <= 10
    if "LONG" in os.environ:
        assert run(scenario).violations == ()
    plant(monkeypatch, bug.target, bug.line, bug.instead)
    assert _checker(name) in {found.checker for found in run(scenario).violations}


@pytest.mark.long
@pytest.mark.parametrize("name", BUGS)
def test_a_search_finds_the_bug_and_shrinks_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    plant(monkeypatch, bug.target, bug.line, bug.instead)
    found = explore(SimulationScenario(bug.world, 0, options={"size": bug.size}), 1_000)
    assert _checker(name) in {one.checker for one in found.violations}
    assert found.scenario is not None
    assert len(found.scenario.text().splitlines()) <= 10
