"""Rule bases as signed S-expressions: each rule signed by its author, and the vocabulary signed by a moderator.

    (rule-bundle <signed founding>? <signed rule> …)

A bundle can be given to others, and joined from the parts that each organisation signed. Nothing in it is trusted
before it is verified.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from penstock.codec.sexp import SExp
from penstock.codec.sexp import head as sexp_head
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.moderator.files.founding import Founding
from penstock.moderator.files.rule_file import OWNER, RuleFile, principal_of
from penstock.moderator.rules.rules import PublishRule, Rule, SubscribeRule
from penstock.trust.signed import UnverifiedValue, read_signed, sign_value

SignedRule: TypeAlias = UnverifiedValue[PublishRule] | UnverifiedValue[SubscribeRule]
"""A signed rule, not verified."""

HEAD: Final = b"rule-bundle"


@dataclass(frozen=True, slots=True)
class RuleBundle:
    """Signed rules, not verified. Raises `MalformedError` (`moderator.duplicate-id`)."""

    rules: tuple[SignedRule, ...] = ()
    founding: UnverifiedValue[Founding] | None = None

    def __post_init__(self) -> None:
        twice = [rule_id for rule_id, count in Counter(each.value.id for each in self.rules).items() if count > 1]
        if twice:
            raise MalformedError(
                "moderator.duplicate-id",
                f"there are two different rules `{twice[0]}`",
                hint="sign one of them with another id",
            )

    def to_sexp(self) -> SExp:
        """Return the bundle as an S-expression."""
        founding = () if self.founding is None else (self.founding.to_sexp(),)
        return (HEAD, *founding, *(rule.to_sexp() for rule in self.rules))

    def verify(self) -> RuleFile:
        """Verify every signature, and return the rule base.

        Raises `RefusedError` (`evolution.wrong-key`, `key.bad-signature`) with the signer's name; `MalformedError`
        (`moderator.bundle`) if the vocabulary is missing.
        """
        if self.founding is None:
            raise malformed(
                "the bundle has signed rules, but no vocabulary",
                hint="join it with one that a moderator has signed (`penstock moderator sign --found`)",
            )
        founding = self.founding.verify().value
        rules: list[Rule] = [each.verify().value for each in self.rules]
        return from_founding(
            founding,
            tuple(rule for rule in rules if isinstance(rule, PublishRule)),
            tuple(rule for rule in rules if isinstance(rule, SubscribeRule)),
        )


def from_founding(
    founding: Founding,
    rules: tuple[PublishRule, ...] = (),
    subscriptions: tuple[SubscribeRule, ...] = (),
    names: Mapping[Principal, str] | None = None,
) -> RuleFile:
    """Return a founding and rules as a rule base that can be written to a file."""
    owners = Counter(event.owner for event in founding.vocabulary.tree.parents)
    owner = owners.most_common(1)[0][0] if owners else principal_of(OWNER)
    return RuleFile(
        founding.vocabulary,
        founding.mode,
        founding.customs,
        owner=owner,
        rules=rules,
        subscriptions=subscriptions,
        publishers=founding.known_publishers,
        subscribers=founding.known_subscribers,
        names={} if names is None else names,
    )


def to_founding(
    rules: RuleFile, name: str, moderator: Principal, when: datetime, *, unsigned: bool = False
) -> Founding:
    """Return the founding of a rule base from a file. Raises what `Founding` raises."""
    return Founding(
        name,
        moderator,
        when.replace(microsecond=0),
        rules.vocabulary,
        rules.mode,
        rules.customs.resolve,
        rules.customs.heuristic.name,
        rules.publishers,
        rules.subscribers,
        unsafe_unsigned=unsigned,
        speakers=rules.customs.speakers,
        tightening=rules.customs.tightening,
    )


def sign_bundle(rules: RuleFile, keys: Iterable[SigningKey], founding: Founding | None = None) -> RuleBundle:
    """Sign the rules of a rule base that these keys can sign, and the founding if its key is among them.

    Raises `RefusedError` (`moderator.no-rules`) if there is nothing to sign.
    """
    by = {key.principal: key for key in keys}
    signed: list[SignedRule] = [
        sign_value(rule, by[rule.stated_by]).unverified() for rule in rules.rules if rule.stated_by in by
    ]
    signed += [
        sign_value(rule, by[rule.stated_by]).unverified() for rule in rules.subscriptions if rule.stated_by in by
    ]
    if not signed and founding is None:
        raise RefusedError(
            "moderator.no-rules",
            "none of the rules was stated by the owners of these keys",
            hint="`by` names who states a rule, and `principals` who that is",
        )
    return RuleBundle(
        tuple(signed), None if founding is None else sign_value(founding, by[founding.moderator]).unverified()
    )


def read_bundle(value: SExp) -> RuleBundle:
    """Read a bundle. Raises `MalformedError` (`moderator.bundle`, and what its parts raise), `RefusedError`."""
    if not isinstance(value, tuple) or sexp_head(value) != HEAD:
        raise malformed("not a bundle of signed rules")
    signed = [read_signed(each, Founding, PublishRule, SubscribeRule) for each in value[1:]]
    foundings = [each for each in signed if isinstance(each.value, Founding)]
    rules = [each for each in signed if not isinstance(each.value, Founding)]
    if len(foundings) > 1:
        raise malformed("two moderators say what the rules may speak about")
    bundle = RuleBundle(tuple(rules), foundings[0] if foundings else None)  # type: ignore[arg-type]  # as sorted above
    if bundle.to_sexp() != value:
        raise malformed("the bundle is not in canonical form: the founding must come first")
    return bundle


def join(bundles: Iterable[RuleBundle]) -> RuleBundle:
    """Join bundles without duplicates. Raises `MalformedError` as `read_bundle`."""
    rules: dict[bytes, SignedRule] = {}
    foundings: dict[bytes, UnverifiedValue[Founding]] = {}
    for bundle in bundles:
        rules |= {rule.digest: rule for rule in bundle.rules if rule.digest not in rules}
        if bundle.founding is not None:
            foundings[bundle.founding.digest] = bundle.founding
    if len(foundings) > 1:
        raise malformed("two moderators give different vocabularies")
    return RuleBundle(tuple(rules.values()), next(iter(foundings.values()), None))


def malformed(message: str, hint: str = "see docs/reference/rule-base.md") -> MalformedError:
    """Return the error for input that is not a bundle."""
    return MalformedError("moderator.bundle", message, hint=hint)
