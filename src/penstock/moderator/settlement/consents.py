"""Consents of principals to others' requests.

    (moderator-consent (book <digest>) (by <principal>) (to <digest>) (since <steps>) (until <date>) [(for <poll>)])

It is to one thing: a resolution with all the forms that it puts in force, or a request as it is written. It counts for
one step: where something with that digest was taken after `since`, the number of steps that the rule base had when it
was given, it is used up. So it can be shown again, and late, without any effect.

One that is given in a poll is for that poll: it counts for the step that the moderator asks for in the poll's name,
with the votes that chose it, and is of no use to anybody else who has seen the vote.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, ClassVar

from penstock.codec.sexp import Named, SExp
from penstock.crypto import digest
from penstock.model.principals import Principal
from penstock.moderator.base.records import request_to_sexp
from penstock.moderator.rules.rules import PublishRule, Rule
from penstock.moderator.rules.steps import MoveType, Request, Resolve, Step, Strategy, Undo
from penstock.trust.signed import DIGEST, Claim


@dataclass(frozen=True, slots=True)
class Consent(Claim):
    """A principal's consent to somebody else's request."""

    HEAD: ClassVar = b"moderator-consent"
    SIGNER: ClassVar = "by"
    #: the digest of the founding of the rule base
    book: Annotated[bytes, DIGEST] = field(repr=False)
    by: Principal
    #: what it is to: `resolution_digest` or `request_digest`
    to: Annotated[bytes, DIGEST] = field(repr=False)
    #: how many steps the rule base had
    since: int
    until: datetime
    #: the poll that it was given in, by its id; None where it was given to whoever asks
    poll: Annotated[bytes | None, DIGEST, Named(b"for")] = field(default=None, repr=False)


def poll_reason(poll: bytes) -> str:
    """Return the reason that a moderator gives for the step that a poll chose."""
    return f"poll {poll.hex()}"


def resolution_digest(rule_id: str, strategy: Strategy, forms: Mapping[str, PublishRule]) -> bytes:
    """Return the digest that a consent to a proposal names; the forms are those of the candidate and of all rules that
    change.
    """
    written = (form.to_sexp() for _, form in sorted(forms.items()))
    return digest((b"resolution", rule_id.encode(), strategy.encode(), *written))


def request_digest(request: Request) -> bytes:
    """Return the digest that a consent to a request names."""
    return digest((b"request", request_to_sexp(request)))


def subject_of(step: Step) -> bytes:
    """Return what consents have to be to, so that a step rests on them."""
    match step.request:
        case Resolve(rule_id, strategy):
            return resolution_digest(rule_id, strategy, _forms(step))
        case MoveType(_, _, Strategy()) as move:
            # Who agrees is not what they agree to.
            asked = request_to_sexp(replace(move, consents=frozenset()))
            return digest((b"move", asked, *(form.to_sexp() for _, form in sorted(_forms(step).items()))))
        case Undo() as undo:
            # What was once agreed to comes back by it, or goes, and so do rules.
            return digest(
                (
                    b"undo",
                    request_to_sexp(undo),
                    *(form.to_sexp() for _, form in sorted(_forms(step).items())),
                    *_named(b"ceasing", step.delta.ceasing),
                    *_named(b"rising", step.delta.rising),
                )
            )
        case request:
            return request_digest(request)


def _named(how: bytes, rules: Mapping[str, Rule]) -> tuple[SExp, ...]:
    """Return the ids of rules to which something happens, if there are any."""
    return ((how, *(rule_id.encode() for rule_id in sorted(rules))),) if rules else ()


def _forms(step: Step) -> Mapping[str, PublishRule]:
    """Return the forms that a step puts in force."""
    changed = ((key, change.after) for key, change in step.delta.rules.items())
    return {key: after.form for key, after in changed if after is not None and after.form is not None}
