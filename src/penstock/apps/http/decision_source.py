"""The policies of a decision service as the source of a decision point: the same bundle answers over HTTP and a fabric.

A decision over a fabric is recorded before its answer is sent, as one over HTTP is. Its answer rests on one policy: the
root of the bundle, with the bundle's revision and the newest modification time of its files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TypeAlias

from penstock.apps.http.bundles import Bundle
from penstock.apps.http.service import DecisionService
from penstock.authority.decisions.coverage import Coverage, covered
from penstock.authority.decisions.decision_point import PointDecision
from penstock.authority.decisions.messages import PolicyRevision, RecyclingClass, RoleRecycling
from penstock.authority.decisions.policy_changes import bounded, policy_changes
from penstock.authority.decisions.questions import AccessQuestion, Properties, facts_of
from penstock.authority.decisions.updates import EVERYTHING, PolicyChange, ResourceChange
from penstock.policy.engine.lookup import Context
from penstock.policy.language.requests import Key
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.residual.request_sets import AnswerSets

KnownEntities: TypeAlias = Mapping[str, Mapping[str, Properties]]


@dataclass(frozen=True)
class PointSettings:
    """What a decision point says about its answers."""

    #: the resources that it subscribes to; derived from the policies if there is nothing
    coverage: Coverage = None
    recycling: RecyclingClass | None = None
    #: whether answers say for which other requests they hold, which discloses policies
    sets: bool = True


@dataclass(frozen=True)
class BundleSource:
    """One bundle of a decision service. The recorder takes each decision before it is returned."""

    service: DecisionService
    bundle: Bundle
    settings: PointSettings = field(default_factory=PointSettings)

    @cached_property
    def rests_on(self) -> tuple[PolicyRevision, ...]:
        """The policies that every answer rests on."""
        return (PolicyRevision(self.bundle.root.id, self.bundle.revision, self.bundle.changed),)

    @cached_property
    def _sets(self) -> AnswerSets:
        return AnswerSets(self.bundle.root)

    @cached_property
    def _known(self) -> frozenset[tuple[str, str]]:
        """The attributes that the bundle has of any entity: they do not come from a question."""
        categories = self.bundle.entities.by_category.items()
        return frozenset(
            (category, name)
            for category, types in categories
            for those in types.values()
            for properties in those.values()
            for name in properties
        )

    def decide(self, question: AccessQuestion, now: datetime) -> PointDecision:
        """Decide a question and record it. Raises `MalformedError` (`pdp.request`), `FailedError`."""
        outcome = self.service.decide(self.bundle, question)
        return PointDecision(outcome, self.rests_on, self.settings.recycling, self._holds_for(question, outcome, now))

    def _holds_for(self, question: AccessQuestion, outcome: PolicyOutcome, now: datetime) -> str | None:
        plain = outcome.decision in (XacmlDecision.PERMIT, XacmlDecision.DENY) and not outcome.obligations
        if not self.settings.sets or not plain:
            return None
        context = Context(None, now, self.bundle.sources, facts_of(question, self.bundle.entities))
        found = self._sets.holds_for(context, outcome, withheld=self._is_known)
        return None if found is None else found.text

    def _is_known(self, key: Key) -> bool:
        return (key.category, key.id) in self._known

    def changes_since(self, older: "BundleSource") -> tuple[PolicyChange, ...]:
        """Return for which requests another bundle's answers may differ from the ones of this."""
        before, after = older.bundle, self.bundle
        # As texts, because `True == 1`.
        if repr((before.entities.subjects, before.entities.actions)) != repr(
            (after.entities.subjects, after.entities.actions)
        ):
            return EVERYTHING
        roles = self.settings.recycling.attribute if isinstance(self.settings.recycling, RoleRecycling) else None
        changes = policy_changes(before.root, after.root, before.sources, after.sources, roles)
        return bounded((*changes, *_resource_changes(before.entities.resources, after.entities.resources)))

    def coverage(self) -> Coverage:
        """Return the keys of the requests that the bundle can resolve."""
        return self.settings.coverage or covered(self.bundle.root, self.bundle.sources)


def _resource_changes(before: KnownEntities, after: KnownEntities) -> Iterator[ResourceChange]:
    for kind in sorted(before.keys() | after.keys()):
        old, new = before.get(kind, {}), after.get(kind, {})
        if _names(old) != _names(new):
            # A name that one resource has is not taken from questions about any other that is known.
            yield ResourceChange(kind)
            continue
        for name in sorted(old.keys() | new.keys()):
            if repr(old.get(name)) != repr(new.get(name)):
                yield ResourceChange(kind, name, exact=True)


def _names(known: Mapping[str, Properties]) -> set[str]:
    return {name for properties in known.values() for name in properties}
