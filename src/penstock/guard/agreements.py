"""Agreements: the rules in force of a consistent rule base, as the owner of the event types announces them.

    (agreement (owner <principal>) (name <name>) (mode <mode>) (rights both | alone)
               (publisher-attribute <name>) (described-by <principal> …)
               (scope …) (types …) (publishers …) (subscribers …) (rules <rule> …))

The rules are those of `penstock.moderator.rules.rules`, without conflicts as the moderator found them; nobody looks for
conflicts again where they are enforced. Profiles count if the owner, or somebody the owner names, has signed them.

An agreement only counts for types of its owner. Together with certificates it restricts (`both`); where a domain wants
no certificates for these types, what was agreed is the right (`alone`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from penstock.codec.sexp import Named
from penstock.errors import MalformedError
from penstock.model.names import check_attribute_name
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.model.types import EventType
from penstock.moderator.rules.conflicts import Mode
from penstock.moderator.rules.rules import PublishRule, Rule
from penstock.moderator.rules.vocabulary import Vocabulary, VocabularyField
from penstock.trust.policy.events import check_agreement_name
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import Claim, SignedValue
from penstock.trust.validity import ALWAYS, Validity

PUBLISHER: Final = "publisher"
"""How the attribute is called, unless an agreement says otherwise, by which events say who published them."""


class AgreementMode(StrEnum):
    """How an agreement combines with certificates: both must permit, or the agreement alone decides."""

    BOTH = "both"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Agreement(Claim):
    """Rules without conflicts about an owner's types, and how they are to be enforced.

    Raises `MalformedError`: `agreement.duplicate-rule`, `agreement.no-types`, `evolution.malformed` for a name that is
    none, and what `Vocabulary.check` raises for a rule.
    """

    HEAD: ClassVar = b"agreement"
    ORDER: ClassVar = (
        "owner",
        "name",
        "mode",
        "combining",
        "publisher_attribute",
        "described_by",
        "vocabulary",
        "rules",
    )
    SIGNER: ClassVar = "owner"
    owner: Principal
    name: str
    vocabulary: VocabularyField = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    mode: Mode = Mode.SCOPED
    combining: Annotated[AgreementMode, Named(b"rights")] = AgreementMode.BOTH
    #: of the events of its types: says who published them, because brokers have it say so
    publisher_attribute: str = PUBLISHER
    #: who may sign profiles, besides the owner
    described_by: tuple[Principal, ...] = ()

    def __post_init__(self) -> None:
        check_agreement_name(self.name)
        check_attribute_name(self.publisher_attribute)
        if len({rule.id for rule in self.rules}) != len(self.rules):
            raise MalformedError("agreement.duplicate-rule", "an agreement has two rules of one id")
        if not any(key.owner == self.owner for key in self.vocabulary.tree.parents):
            raise MalformedError(
                "agreement.no-types",
                "an agreement is about none of its owner's types",
                hint="whoever owns the types of the tree announces it",
            )
        for rule in self.rules:
            # Whether anybody satisfies a function was found out when the rule came into force.
            self.vocabulary.check(rule, shown=lambda _function, _selector: True)
        object.__setattr__(self, "rules", tuple(sorted(self.rules, key=lambda rule: rule.id)))
        object.__setattr__(self, "described_by", tuple(sorted(set(self.described_by))))

    @property
    def publish_rules(self) -> tuple[PublishRule, ...]:
        """Return the publishers' rules."""
        return tuple(rule for rule in self.rules if isinstance(rule, PublishRule))

    def concerns(self, event_type: EventType) -> bool:
        """Say whether it counts for a type: one of the owner's, that is in the tree or extends one that is."""
        tree = self.vocabulary.tree
        return event_type.key.owner == self.owner and any(
            key in tree for key in (event_type.key, *event_type.ancestors)
        )

    def believes(self, claim: ProfileClaim) -> bool:
        """Say whether the signer of a profile is authorised."""
        return claim.said_by == self.owner or claim.said_by in self.described_by


@dataclass(frozen=True, slots=True)
class Described:
    """A principal's profile, its roles, and its validity."""

    profile: Profile
    publisher: bool
    subscriber: bool
    validity: Validity = ALWAYS


def described(agreement: Agreement, claims: Iterable[SignedValue[ProfileClaim]]) -> Mapping[Principal, Described]:
    """Return the profiles that count for an agreement.

    Claims by an unauthorised signer, or that do not fit the declared attributes, are ignored: if
    nothing is known, nothing is allowed. Of several claims about one principal the last counts.
    """
    found: dict[Principal, Described] = {}
    for claim in claims:
        if agreement.believes(claim.value):
            found.pop(claim.value.of, None)
            fitted = fit(agreement.vocabulary, claim.value)
            if fitted is not None:
                found[claim.value.of] = fitted
    return MappingProxyType(found)


def fit(vocabulary: Vocabulary, claim: ProfileClaim) -> Described | None:
    """Return a claim's profile, or None if it does not fit the declared attributes.

    Who is described as both is one: an attribute of publishers and of subscribers has one value, or none.
    """
    publisher, subscriber = claim.publisher, claim.subscriber
    if publisher is not None and subscriber is not None:
        shared = vocabulary.publishers.attributes.keys() & vocabulary.subscribers.attributes.keys()
        if any(publisher.get(name) != subscriber.get(name) for name in shared):
            return None
    try:
        vocabulary.publishers.profile(publisher or {})
        vocabulary.subscribers.profile(subscriber or {})
    except MalformedError:
        return None
    profile = Profile(MappingProxyType({**(publisher or {}), **(subscriber or {})}))
    return Described(profile, publisher is not None, subscriber is not None, claim.validity)
