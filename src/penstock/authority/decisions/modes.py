"""Combining the answers of several decision points. Everything here is pure.

| mode | waits for | result |
|---|---|---|
| `first` | one answer | that answer; nothing is compared |
| `newest:SECONDS` | all answers within so many seconds, or the first one after | the newest |
| `n:NUMBER` | answers of so many different points | the newest |
| `tuple:SECONDS:ID` | as `newest` | what the decision tuple gives for the effects, ordered by point |

An answer is newer than another if it rests on the same policies, and each has a later change time or the same revision.
If there is no newest answer and the candidates differ, the result is a refusal.

Where answers have priorities, only those with the highest count (paper 4, section 4.1.1.3).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from penstock.authority.decisions.messages import AccessAnswer, AnswerDuty, AnswerEffect
from penstock.authority.decisions.recycling import Recycled
from penstock.errors import MalformedError, RefusedError
from penstock.policy.combining import DecisionTuple
from penstock.policy.language.results import PROCESSING_ERROR, XacmlDecision

_HINT: Final = "write `first`, `newest:SECONDS`, `n:NUMBER` or `tuple:SECONDS:ID`"
_DECISIONS: Final[Mapping[AnswerEffect, XacmlDecision]] = {
    AnswerEffect.PERMIT: XacmlDecision.PERMIT,
    AnswerEffect.DENY: XacmlDecision.DENY,
    AnswerEffect.NOT_APPLICABLE: XacmlDecision.NOT_APPLICABLE,
    AnswerEffect.INDETERMINATE: XacmlDecision.INDETERMINATE_DP,
}


_REASONS: Final = {
    AnswerEffect.PERMIT: "obligations",
    AnswerEffect.DENY: "denied",
    AnswerEffect.NOT_APPLICABLE: "not-applicable",
}
#: what is said about each reason, and what to do
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "denied": (": it is forbidden", "ask whoever administers the resource"),
    "not-applicable": (
        ": nobody has decided about this subject, action and resource",
        "check the types and names, or ask whoever administers the resource",
    ),
    "obligations": (" with obligations that nobody fulfils", "fulfil them: a command does with --fulfil ID"),
    "missing-attribute": (
        ": something that has to be known about the subject, the resource or the action is not known",
        "give it with the question, or check the information points",
    ),
    "foreign.unmapped": (
        ": the attributes of the subject's domain mean nothing here",
        "ask an administrator for a mapping",
    ),
    "processing-error": (
        ": the policies cannot be evaluated for this question",
        "ask an administrator",
    ),
}


class VerifiedAnswer(Protocol):
    """An answer whose origin was verified."""

    @property
    def value(self) -> AccessAnswer:
        """What it says."""
        ...


@dataclass(frozen=True, slots=True)
class AskedDecision:
    """What an enforcement point enforces: the effect, and the answers that it follows from."""

    effect: AnswerEffect
    answers: tuple[VerifiedAnswer, ...]
    obligations: tuple[AnswerDuty, ...] = ()
    advice: tuple[AnswerDuty, ...] = ()
    #: whether answers differed
    disagreed: bool = False
    #: why it holds, if it was not asked for but follows from cached answers
    recycled: Recycled | None = None

    def permits(self, understood: frozenset[str] = frozenset()) -> bool:
        """Return whether access is permitted, by somebody who fulfils the obligations with these ids."""
        return self.effect is AnswerEffect.PERMIT and all(duty.id in understood for duty in self.obligations)

    def refusal(self, understood: frozenset[str] = frozenset()) -> RefusedError | None:
        """Return why access is not permitted, for whoever asked (`pdp.not-permitted`); None if it is permitted.

        The field `reason` is `denied`, `not-applicable`, `obligations`, `missing-attribute`, or the code of what
        cannot be evaluated. It says nothing about policies, which the asker may not know.
        """
        if self.permits(understood):
            return None
        if self.effect is AnswerEffect.INDETERMINATE:
            status = min((one.value.status for one in self.answers if one.value.status), default=PROCESSING_ERROR)
            reason = status.rpartition(":")[2]
        else:
            reason = _REASONS[self.effect]
        words, hint = _WORDS.get(reason, _WORDS["processing-error"])
        lacking = [duty.id for duty in self.obligations if duty.id not in understood]
        more = {"obligations": lacking} if reason == "obligations" else {}
        return RefusedError(
            "pdp.not-permitted", f"the answer is {self.effect}{words}", hint=hint, reason=reason, **more
        )


T = TypeVar("T")


def of_highest_priority(answers: Iterable[T], priority: Callable[[T], int]) -> list[T]:
    """Return the answers that count where some have a higher priority than others."""
    ranked = [(priority(one), one) for one in answers]
    highest = max((rank for rank, _ in ranked), default=0)
    return [one for rank, one in ranked if rank == highest]


def is_newer(one: AccessAnswer, other: AccessAnswer) -> bool | None:
    """Return whether an answer rests on newer policies than another; None if they cannot be compared.

    Answers that rest on the same revisions are newer than each other.
    """
    theirs = {policy.id: policy for policy in other.rests_on}
    if theirs.keys() != {policy.id for policy in one.rests_on}:
        return None
    older = newer = False
    for policy in one.rests_on:
        known = theirs[policy.id]
        if policy.revision != known.revision:
            older = older or policy.changed <= known.changed
            newer = newer or policy.changed >= known.changed
    return None if older and newer else not older


def _says(answer: AccessAnswer) -> tuple[AnswerEffect, tuple[AnswerDuty, ...]]:
    return answer.effect, answer.obligations


def newest(answers: Sequence[VerifiedAnswer]) -> AskedDecision:
    """Return the decision of the newest answer.

    Raises `RefusedError` (`pep.incomparable`) if none is the newest and they differ.
    """
    disagreed = len({_says(answer.value) for answer in answers}) > 1
    best = [one for one in answers if not any(_is_older(one.value, other.value) for other in answers)]
    if len({_says(answer.value) for answer in best}) != 1:
        raise RefusedError(
            "pep.incomparable",
            f"{len(best)} decision points answer differently, and none rests on newer policies than the others",
            hint="bring the same policies to all points, with the same change times",
            points=sorted(answer.value.point.short for answer in best),
        )
    return AskedDecision(
        best[0].value.effect, tuple(best), best[0].value.obligations, best[0].value.advice, disagreed=disagreed
    )


def _is_older(one: AccessAnswer, other: AccessAnswer) -> bool:
    return is_newer(one, other) is False and is_newer(other, one) is True


@dataclass(frozen=True, slots=True)
class AnswerMode:
    """How many answers to wait for, and how to combine them. See the module."""

    #: seconds after the request for which answers are collected; None to wait for `answers` alone
    wait: float | None = None
    #: answers of different points that are enough
    answers: int | None = 1
    #: whether answers are compared, with each other and with what was seen before
    compares: bool = True
    tuple: DecisionTuple | None = None

    def __post_init__(self) -> None:
        if (self.wait is None and self.answers is None) or (self.answers is not None and self.answers < 1):
            raise MalformedError("pep.mode", "a mode waits for a time, or for at least one answer", hint=_HINT)
        if self.wait is not None and not 0 < self.wait < float("inf"):
            raise MalformedError("pep.mode", "a mode waits for some seconds", hint=_HINT)

    @property
    def takes_one(self) -> bool:
        """Whether the decision is that of one answer, which can be recycled."""
        return self.tuple is None and self.answers in (None, 1)

    @classmethod
    def parse(cls, text: str) -> "AnswerMode":
        """Read `first`, `newest:SECONDS`, `n:NUMBER` or `tuple:SECONDS:ID`.

        >>> AnswerMode.parse("n:2").answers
        2

        Raises `MalformedError` (`pep.mode`), and what `DecisionTuple.of_id` raises.
        """
        word, _, rest = text.partition(":")
        try:
            match word:
                case "first" if not rest:
                    return FIRST
                case "newest":
                    return cls(wait=float(rest), answers=None)
                case "n":
                    return cls(answers=int(rest))
                case "tuple":
                    wait, _, name = rest.partition(":")
                    return cls(wait=float(wait), answers=None, tuple=DecisionTuple.of_id(name))
        except ValueError:
            pass
        raise MalformedError("pep.mode", f"`{text[:80]}` is not a mode", hint=_HINT)

    def combine(self, answers: Sequence[VerifiedAnswer]) -> AskedDecision:
        """Return the decision of one or more answers. Raises `RefusedError` (`pep.incomparable`)."""
        if not self.compares:
            first = answers[0].value
            return AskedDecision(first.effect, (answers[0],), first.obligations, first.advice)
        return newest(answers) if self.tuple is None else self._by_tuple(self.tuple, answers)

    @staticmethod
    def _by_tuple(elements: DecisionTuple, answers: Sequence[VerifiedAnswer]) -> AskedDecision:
        # Elements that are patterns of a sequence depend on the order, which must not depend on who was quicker.
        ordered = sorted(answers, key=lambda answer: answer.value.point.digest)
        result = elements.result(_DECISIONS[answer.value.effect] for answer in ordered)
        effect = AnswerEffect.INDETERMINATE if result is None else AnswerEffect.of(result)
        same = tuple(answer for answer in ordered if answer.value.effect is effect)
        obligations, advice = (
            tuple(dict.fromkeys(duty for answer in same for duty in duties(answer.value)))
            for duties in (_obligations, _advice)
        )
        disagreed = len({_says(answer.value) for answer in answers}) > 1
        return AskedDecision(effect, tuple(ordered), obligations, advice, disagreed=disagreed)


def _obligations(answer: AccessAnswer) -> tuple[AnswerDuty, ...]:
    return answer.obligations


def _advice(answer: AccessAnswer) -> tuple[AnswerDuty, ...]:
    return answer.advice


FIRST: Final = AnswerMode(compares=False)
