"""Certificates on the screen: one in full, several as a tree of who gave what to whom."""

from dataclasses import dataclass
from datetime import datetime

from penstock.apps.cli import paint
from penstock.apps.cli.describe import Wording, date_problem, statement_data
from penstock.apps.cli.trusted import Bag
from penstock.crypto import digest
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.principals import Principal
from penstock.trust.certificates import (
    Statement,
    UnverifiedCertificate,
    certificate_id,
    read_statement,
    verify_certificate,
)
from penstock.trust.credentials import Damaged
from penstock.trust.subjects import Name, Subject, Threshold
from penstock.trust.validity import State


@dataclass(frozen=True, slots=True)
class Judged:
    """What a certificate says, and what is wrong with it: nothing, or a code and words."""

    id: str
    statement: Statement
    code: str = ""
    problem: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        data = {"id": self.id, "ok": not self.code, **statement_data(self.statement)}
        return data | ({"code": self.code, "problem": self.problem} if self.code else {})


def judge_bag(bag: Bag, now: datetime) -> list[Judged]:
    """Judge every certificate of a bag. Raises what is wrong with one that cannot be read at all."""
    return [
        *(judge(certificate, now) for certificate in bag.credentials.certificates),
        *map(_judge_damaged, bag.damaged),
    ]


def _judge_damaged(one: Damaged) -> Judged:
    """Take what a changed certificate says for what it is: words that nobody signed."""
    if isinstance(one.error, MalformedError):
        raise one.error
    problem = f"not verified: {one.error.message}"
    return Judged(certificate_id(digest(one.body)), read_statement(one.body), one.error.code, problem)


def judge(certificate: UnverifiedCertificate, now: datetime) -> Judged:
    """Check the signature, then the dates. On-line tests are not asked here."""
    id_, statement = certificate.id, certificate.statement
    try:
        verify_certificate(certificate)
    except RefusedError as error:
        return Judged(id_, statement, error.code, error.message)
    state = statement.validity.state(instant_key(now))
    if state is State.VALID:
        return Judged(id_, statement)
    return Judged(id_, statement, f"cert.{state}", date_problem(f"cert.{state}", statement.validity))


def show_bag(judged: list[Judged], quorums: tuple[Threshold, ...], wording: Wording, *, in_full: bool) -> None:
    """Show one certificate in full, several as a tree."""
    if not judged and not quorums:
        paint.line("nothing: no certificate and no quorum")
        return
    if in_full or len(judged) == 1:
        for index, one in enumerate(judged):
            if index:
                paint.line()
            paint.facts(_facts(one, wording))
    else:
        paint.tree(_forest(judged, wording))
    for quorum in quorums:
        paint.facts([("quorum", wording.subject(quorum)), ("principal", str(quorum.principal))])


def _facts(one: Judged, wording: Wording) -> list[tuple[str, str]]:
    state = f"✗ {one.problem} [{one.code}]" if one.code else "✓ signed and valid"
    return [("certificate", one.id), *wording.statement(one.statement), ("state", state)]


def _forest(judged: list[Judged], wording: Wording) -> list[paint.Node]:
    """Hang each certificate below those that lead to its issuer; what nothing leads to stands at the top."""
    by_issuer: dict[Principal, list[Judged]] = {}
    for one in judged:
        by_issuer.setdefault(one.statement.issuer, []).append(one)
    shown: set[str] = set()

    def grow(node: paint.Node, principal: Principal, depth: int) -> None:
        for one in by_issuer.get(principal, ()):
            if one.id in shown:
                continue
            shown.add(one.id)
            child = paint.Node(_line(one, wording))
            node.children.append(child)
            # Cycles end because each certificate is shown once; a long chain goes on at the top.
            if depth < DEFAULT_LIMITS.chain_length:
                for reached in _reached(one.statement.subject):
                    grow(child, reached, depth + 1)

    led_to = {
        reached for one in judged for reached in _reached(one.statement.subject) if reached != one.statement.issuer
    }
    roots: list[paint.Node] = []
    for principal in [*(issuer for issuer in by_issuer if issuer not in led_to), *by_issuer]:
        node = paint.Node(wording.who(principal))
        grow(node, principal, 0)
        if node.children:
            roots.append(node)
    return roots


def _reached(subject: Subject) -> list[Principal]:
    match subject:
        case Principal():
            return [subject]
        case Name():
            return []
        case Threshold():
            return [principal for member in subject.subjects for principal in _reached(member)]


def _line(one: Judged, wording: Wording) -> str:
    mark = f"✗ {one.problem}" if one.code else "✓"
    # The issuer is the node above.
    text = wording.line(one.statement).split(" ", 1)[-1]
    return f"{mark} {text}"
