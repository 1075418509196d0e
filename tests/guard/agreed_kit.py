"""What the tests of agreed rules share: real types in a tree, people with signed profiles, and rules in one line."""

from collections.abc import Iterable, Mapping
from functools import cache

from tests.moderator.kit import MAKERS, OWNER, PEOPLE, event
from tests.trust.kit import NOW, key, who

from penstock.guard import Agreement, AgreementMode, Agreements, CapabilityAuthority, Decision, EventRequest, decide
from penstock.guard.agreements import AgreedRules, described
from penstock.model import AttributeDefinition, AttributeSpec, Kind, Principal, TypeDefinition, TypeKey, TypeName
from penstock.model.tree import TreeScope, TypeTree
from penstock.model.values import Value
from penstock.moderator.rules.rules import Mode, Rule
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType, sign_type, verify_type
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, sign_value

OWNING = key(1)
P1, P2, P3 = (who(number) for number in (11, 12, 13))
ANN, BOB, EVE = (who(number) for number in (21, 22, 23))
#: X, below it A1 and A2, below A1 A10
PARENTS: Mapping[str, str | None] = {"X": None, "A1": "X", "A2": "X", "A10": "A1"}
TREE = {event(name): None if parent is None else event(parent) for name, parent in PARENTS.items()}
TEXT = AttributeSpec(Kind.STRING)


def definition(name: str, *, told: bool, parent: str | None = None) -> TypeDefinition:
    own = [AttributeDefinition(f"note{name}", f"note{name}", TEXT)]
    if told and parent is None:
        own.append(AttributeDefinition("publisher", "publisher", TEXT))
    extends = None if parent is None else TypeName(OWNER, parent)
    return TypeDefinition(TypeName(OWNER, name), tuple(own), extends)


@cache
def signed_types(*, told: bool) -> dict[TypeName, UnverifiedType]:
    made = [definition(name, told=told, parent=parent) for name, parent in PARENTS.items()]
    return {one.name: sign_type(one, OWNING) for one in made}


@cache
def types(*, told: bool = True) -> dict[TypeKey, VerifiedType]:
    """Return the types; `told` where events say who published them."""
    made = signed_types(told=told)
    return {name.key: verify_type(one, NOW, types=made.get) for name, one in made.items()}


def profile(of: Principal, by: int = 1, /, **values: Value) -> SignedValue[ProfileClaim]:
    """Describe a publisher, or a subscriber."""
    made = ProfileClaim(of, who(by), values) if of in (P1, P2, P3) else ProfileClaim(of, who(by), None, values)
    return sign_value(made, key(by))


PROFILES = (
    profile(P1, company="A", licensed=True),
    profile(P2, company="B"),
    profile(ANN, role="engineer", age=40),
    profile(BOB, role="worker", age=17),
)


def agreement(
    *rules: Rule,
    scope: TreeScope = TreeScope.DOWNWARD,
    mode: Mode = Mode.SCOPED,
    combining: AgreementMode = AgreementMode.ALONE,
    described_by: Iterable[Principal] = (),
    tree: Mapping[TypeKey, TypeKey | None] = TREE,
) -> Agreement:
    words = Vocabulary(TypeTree.of(tree, scope), MAKERS, PEOPLE)
    return Agreement(OWNER, "plant", words, rules, mode, combining, described_by=tuple(described_by))


def agreed(made: Agreement, profiles: Iterable[SignedValue[ProfileClaim]] = PROFILES) -> AgreedRules:
    return AgreedRules(made, described(made, profiles))


def right(of: Principal, name: str, *rights: Right, **more: object) -> Certificate:
    tag = event_tag(OWNER, name, None, rights, **more)  # type: ignore[arg-type]  # of event_tag
    return issue(Authorisation(OWNER, of, tag), OWNING)


def ask(
    rules: AgreedRules, of: Principal, action: Right, verified: VerifiedType, *certificates: Certificate
) -> Decision:
    """Decide by certificates and what was agreed on."""
    authority = Agreements((rules,)).over(CapabilityAuthority(Credentials.of(*certificates)))
    return decide(EventRequest(of, action, verified, NOW), [authority])
