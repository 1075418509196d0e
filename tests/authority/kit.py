"""What the tests of rule books share: keys of the people in `tests.moderator.kit`, and books in one line."""

from dataclasses import replace
from datetime import UTC, datetime

from tests.moderator.kit import P1, P2, P3, WORKFLOW, words
from tests.trust.kit import key

from penstock.authority.rulebook import RuleBook
from penstock.crypto import SigningKey
from penstock.model.tree import TypeTree
from penstock.moderator.files.founding import Founding
from penstock.store.ledgers.ledgers import Ledger, Store
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.signed import sign_value

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "rules"
MODERATOR, OWNER_KEY = key(2), key(1)
#: the key of each publisher
KEYS: dict[object, SigningKey] = {each.principal: each for each in map(key, (1, 2, 11, 12, 13, 14))}
K1, K2, K3 = (KEYS[who] for who in (P1, P2, P3))


def founding(tree: TypeTree = WORKFLOW, **changes: object) -> Founding:
    return replace(Founding(NAME, MODERATOR.principal, NOW, words(tree)), **changes)  # type: ignore[arg-type]  # by name


def ledger() -> Ledger:
    return Store(MemoryRecords()).ledger(NAME)


def book_in(place: Ledger, tree: TypeTree = WORKFLOW, **changes: object) -> RuleBook:
    signed = sign_value(founding(tree, **changes), MODERATOR)
    return RuleBook.create(place, signed.unverified(), NOW)
