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
from typing import ClassVar, Final

from penstock.codec.sexp import SExp, head, text
from penstock.errors import MalformedError
from penstock.model.names import check_attribute_name
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.model.types import EventType
from penstock.moderator.rules.conflicts import Mode
from penstock.moderator.rules.rules import PublishRule, Rule, SubscribeRule
from penstock.moderator.rules.vocabulary import Vocabulary, read_vocabulary, rows, vocabulary_fields
from penstock.trust.policy.events import check_agreement_name
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import Claim, SignedValue, malformed, one, read_owner
from penstock.trust.validity import ALWAYS, Validity

PUBLISHER: Final = "publisher"
"""How the attribute is called, unless an agreement says otherwise, by which events say who published them."""


class AgreementMode(StrEnum):
    """How an agreement and certificates make rights: both must allow, or the agreement alone does."""

    BOTH = "both"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Agreement(Claim):
    """Rules without conflicts about an owner's types, and how they are to be enforced.

    Raises `MalformedError`: `agreement.duplicate-rule`, `agreement.no-types`, `evolution.malformed` for a name that is
    none, and what `Vocabulary.check` raises for a rule.
    """

    HEAD: ClassVar = b"agreement"
    owner: Principal
    name: str
    vocabulary: Vocabulary = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    mode: Mode = Mode.SCOPED
    combining: AgreementMode = AgreementMode.BOTH
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
    def signer(self) -> Principal:
        """The owner of the types."""
        return self.owner

    @property
    def publish_rules(self) -> tuple[PublishRule, ...]:
        """What publishers state."""
        return tuple(rule for rule in self.rules if isinstance(rule, PublishRule))

    def concerns(self, event_type: EventType) -> bool:
        """Say whether it counts for a type: one of the owner's, that is in the tree or extends one that is."""
        tree = self.vocabulary.tree
        return event_type.key.owner == self.owner and any(
            key in tree for key in (event_type.key, *event_type.ancestors)
        )

    def believes(self, claim: ProfileClaim) -> bool:
        """Say whether the word of who describes somebody counts."""
        return claim.said_by == self.owner or claim.said_by in self.described_by

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"owner", str(self.owner).encode()),
            (b"name", self.name.encode()),
            (b"mode", self.mode.encode()),
            (b"rights", self.combining.encode()),
            (b"publisher-attribute", self.publisher_attribute.encode()),
            (b"described-by", *(str(who).encode() for who in self.described_by)),
            *vocabulary_fields(self.vocabulary),
            (b"rules", *(rule.to_sexp() for rule in self.rules)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "Agreement":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, `agreement.*`, and what the parts raise)."""
        return cls(
            read_owner(one(body, b"owner")),
            text(one(body, b"name")),
            read_vocabulary(body),
            tuple(_read_rule(rule) for rule in rows(body, b"rules")),
            Mode(_word(body, b"mode", Mode)),
            AgreementMode(_word(body, b"rights", AgreementMode)),
            text(one(body, b"publisher-attribute")),
            tuple(read_owner(who) for who in rows(body, b"described-by")),
        )


def _read_rule(value: SExp) -> Rule:
    match head(value):
        case PublishRule.HEAD:
            return PublishRule.from_sexp(value)
        case SubscribeRule.HEAD:
            return SubscribeRule.from_sexp(value)
    raise malformed("an agreement has a rule of a kind that is not known")


def _word(body: SExp, name: bytes, words: type[Mode] | type[AgreementMode]) -> str:
    found = text(one(body, name))
    if found not in [*words]:
        raise malformed(f"an agreement has a `{name.decode()}` that is not known")
    return found


@dataclass(frozen=True, slots=True)
class Described:
    """What is known about somebody, as which of the two, and while it is true."""

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
    """Return what a claim says, or None where it does not fit the declared attributes.

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
