"""Requests to a rule book that others have to agree to, and what they agree to."""

from datetime import timedelta

from tests.authority.kit import K1, K2, NOW
from tests.moderator.kit import P1, P2, rule
from tests.trust.kit import key, refused

from penstock.authority.rulebook import RuleBook
from penstock.crypto import SigningKey
from penstock.model.principals import Principal
from penstock.moderator.rules.steps import (
    Add,
    Note,
    Request,
    Resolve,
    Step,
    Strategy,
)
from penstock.moderator.settlement.proposals import Consent, request_digest, subject_of
from penstock.trust.signed import UnverifiedValue, sign_value

DAY = timedelta(days=1)
ENGINEERS = "role = 'engineer'"
AT_A = "company = 'A'"
STRANGER = key(99)


def agreed(
    book: RuleBook, by: SigningKey, to: Request | Step, *, since: int | None = None, days: int = 1
) -> UnverifiedValue[Consent]:
    subject = subject_of(to) if isinstance(to, Step) else request_digest(to)
    steps = book.base.next_number - 1 if since is None else since
    return sign_value(Consent(book.id, by.principal, subject, steps, NOW + days * DAY), by).unverified()


def refuses(book: RuleBook, code: str, by: SigningKey, request: Request, *consents: UnverifiedValue[Consent]) -> None:
    """Check that something is refused, and changes nothing."""
    head, image = book.head, book.base.image()
    with refused(code):
        book.ask(by, request, NOW, consents=consents)
    book.refresh()
    assert (book.head, book.base.image()) == (head, image)


def colliding(book: RuleBook) -> Resolve:
    """Let P2 state what conflicts with a rule of P1; to delete attributes then relaxes both rules."""
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    book.ask(K2, Add(rule("r2", "A1", AT_A, of=[P2])), NOW)
    return Resolve("r2", Strategy.DELETE, frozenset({P1, P2}))


def planned(book: RuleBook, request: Request, who: Principal = P2) -> Step:
    return book.plan(request, Note(who, NOW)).step
