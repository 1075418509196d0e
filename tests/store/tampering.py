"""What somebody may do to a ledger of four changes who can write to the database, and where it shows first."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tampered:
    """A statement, and the number of the first change that it breaks."""

    what: str
    statement: str
    first: int


TAMPERED = [
    Tampered("who", "UPDATE penstock_changes SET who = replace(who, 'ed25519', 'threshold') WHERE number = 2", 2),
    Tampered("when", "UPDATE penstock_changes SET at = at + 1 WHERE number = 3", 3),
    Tampered("why", "UPDATE penstock_changes SET why = 'no reason' WHERE number = 1", 1),
    Tampered("kind", "UPDATE penstock_changes SET kind = 'other' WHERE number = 4", 4),
    Tampered("before", "UPDATE penstock_changes SET before = after WHERE number = 2", 2),
    Tampered("after", "UPDATE penstock_changes SET after = NULL WHERE number = 2", 2),
    Tampered("hash", "UPDATE penstock_changes SET hash = after WHERE number = 2", 2),
    Tampered("dropped", "DELETE FROM penstock_changes WHERE number = 3", 3),
    Tampered("dropped at the end", "DELETE FROM penstock_changes WHERE number > 2", 3),
    Tampered("all dropped", "DELETE FROM penstock_changes", 1),
    Tampered("another order", "UPDATE penstock_changes SET number = 9 - number WHERE number < 5", 1),
    Tampered("moved", "UPDATE penstock_changes SET ledger = 'other'", 1),
    Tampered("an older head", "UPDATE penstock_ledgers SET number = 3", 3),
    Tampered("a later head", "UPDATE penstock_ledgers SET number = 5", 5),
    Tampered(
        "another head",
        "UPDATE penstock_ledgers SET hash = ledger_hash.hash FROM "
        "(SELECT hash FROM penstock_changes WHERE number = 1) AS ledger_hash",
        4,
    ),
    Tampered("the time of the head", "UPDATE penstock_ledgers SET at = at - 1", 4),
    Tampered("no head", "DELETE FROM penstock_ledgers", 1),
]
