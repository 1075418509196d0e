"""What the tests of the moderator's life share: a rule base, and requests in one line."""

from datetime import UTC, datetime, timedelta

from tests.moderator.kit import OWNER, WORKFLOW, words

from penstock.model.principals import Principal
from penstock.model.tree import TypeTree
from penstock.moderator.base.base import RuleBase
from penstock.moderator.descriptions import function_text
from penstock.moderator.rules.rules import Mode, PublishRule
from penstock.moderator.rules.steps import Add, Note, Request, Resolve, Strategy, Undo, WithdrawRule
from penstock.moderator.settlement.addition import DEFAULT_CUSTOMS, Customs, Plan
from penstock.moderator.settlement.undo import plan, plan_undo

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def base_of(tree: TypeTree = WORKFLOW, mode: Mode = Mode.SCOPED) -> RuleBase:
    return RuleBase(words(tree), mode)


def ask(
    base: RuleBase, request: Request, customs: Customs = DEFAULT_CUSTOMS, *, who: Principal | None = None, day: int = 0
) -> Plan:
    """Plan a request and apply it, asked by whoever may if nobody is named."""
    note = Note(who or _speaker(base, request), NOW + timedelta(days=day))
    planned = (
        plan_undo(base, request, note, customs) if isinstance(request, Undo) else plan(base, request, note, customs)
    )
    base.apply(planned.step)
    return planned


def add(base: RuleBase, *rules: PublishRule) -> None:
    for rule in rules:
        ask(base, Add(rule))


def resolve(base: RuleBase, rule_id: str, strategy: Strategy = Strategy.ADD, *consents: Principal) -> Plan:
    return ask(base, Resolve(rule_id, strategy, frozenset(consents)))


def in_force(base: RuleBase) -> dict[str, str]:
    """Return what subscribers must satisfy, by the ids of the rules in force."""
    return {rule_id: function_text(rule.fnc_s) for rule_id, rule in sorted(base.detector.rules.items())}


def _speaker(base: RuleBase, request: Request) -> Principal:
    match request:
        case Add(rule):
            return rule.stated_by
        case WithdrawRule(rule_id) if rule_id in base.standings:
            return base.standings[rule_id].stated.stated_by
    return OWNER
