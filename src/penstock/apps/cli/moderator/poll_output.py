"""Answers of the commands about polls: sentences and diffs for people, plain data for programs."""

from collections.abc import Iterator
from datetime import datetime

from penstock.apps.cli.moderator.output import rule_data, show_revision
from penstock.apps.cli.moderator.sources import Cast
from penstock.apps.cli.shared.describe import counted, instant_text, value_text
from penstock.apps.cli.shared.terminal import Shown
from penstock.authority.polls import Kept
from penstock.moderator.descriptions import rule_sentence
from penstock.moderator.polls import Option, Poll, PollQuestion, Vote, VoterResponse
from penstock.moderator.settlement.proposals import Revision

Data = dict[str, object]
#: the number of a poll's digits that people see; programs get all
SHORT = 12


def poll_name(poll: bytes) -> str:
    """Return the short name of a poll."""
    return poll.hex()[:SHORT]


def question_data(poll: bytes | None, question: PollQuestion, cast: Cast) -> Data:
    """Return a question as plain data; `poll` is None if it is not asked yet."""
    return {
        "poll": None if poll is None else poll.hex(),
        "moderator": str(question.moderator),
        "rule": rule_data(question.rule(question.candidate).stated, cast),
        "asked": value_text(question.time),
        "deadline": value_text(question.deadline),
        "voters": dict(sorted((cast.show(voter), str(voter)) for voter in question.voters)),
        "options": [
            {
                "strategy": str(option.strategy),
                "relaxes": sorted(map(cast.show, option.relaxes)),
                "revisions": [
                    {"before": rule_data(each.before, cast), "after": rule_data(each.after, cast)}
                    for each in _revisions(question, option)
                ],
            }
            for option in question.options
        ],
    }


def show_question(poll: bytes | None, question: PollQuestion, cast: Cast) -> Iterator[Shown]:
    """Yield the question, and who is asked."""
    candidate = question.rule(question.candidate).stated
    name = "would ask" if poll is None else f"poll {poll_name(poll)}"
    yield f"{name}, until {instant_text(question.deadline)}: how should {candidate.id} be settled?"
    yield f"  {rule_sentence(candidate, cast.show)}"
    for number, option in enumerate(question.options, 1):
        needs = ", ".join(sorted(map(cast.show, option.relaxes)))
        yield f"{number}. {option.strategy}" + (f": relaxes the rules of {needs}, who must consent" if needs else "")
        for revision in _revisions(question, option):
            yield from show_revision(revision)
    yield f"{counted(len(question.voters), 'publisher')} asked: {', '.join(sorted(map(cast.show, question.voters)))}"


def _revisions(question: PollQuestion, option: Option) -> list[Revision]:
    found = [Revision(question.rule(form.id).form, form) for form in option.forms]
    return [revision for revision in found if revision.before != revision.after]


def vote_data(vote: Vote, question: PollQuestion, cast: Cast) -> Data:
    """Return a vote as plain data."""
    subjects = {consent.value.to for consent in vote.consents}
    return {
        "poll": vote.poll.hex(),
        "voter": str(vote.voter),
        "by": cast.show(vote.voter),
        "number": vote.number,
        "approves": sorted(map(str, vote.approves)),
        "consents": [str(option.strategy) for option in question.options if question.subject(option) in subjects],
    }


def vote_text(vote: Vote, question: PollQuestion) -> str:
    """Return a vote as a sentence."""
    subjects = {consent.value.to for consent in vote.consents}
    said = [
        f"{option.strategy}{' (its own rule may be relaxed)' if question.subject(option) in subjects else ''}"
        for option in question.options
        if option.strategy in vote.approves
    ]
    return f"approves of {', '.join(said)}" if said else "refuses everything"


def show_votes(poll: Poll, cast: Cast) -> Iterator[Shown]:
    """Yield the response of each voter."""
    answers, votes = poll.tally().answers, {vote.value.voter: vote.value for vote in poll.votes}
    for voter, answer in sorted(answers.items(), key=lambda each: cast.show(each[0])):
        said = {
            VoterResponse.SILENT: "silent, which refuses",
            VoterResponse.CONTRADICTED: "has cast contradicting votes, which refuses",
        }.get(answer) or vote_text(votes[voter], poll.question.value)
        yield f"  {cast.show(voter)}: {said}"


def show_ended(kept: Kept, cast: Cast) -> Iterator[Shown]:
    """Yield the votes and the result of a poll."""
    yield from show_votes(kept.poll, cast)
    yield f"{'✓' if _step(kept) else '✗'} poll {poll_name(kept.poll.id)}: {state_text(kept)}"


def state_text(kept: Kept) -> str:
    """Return the state of a poll as a sentence."""
    tally, settled = kept.poll.tally(), kept.settlement
    if kept.open or settled is None:
        heard = sum(1 for answer in tally.answers.values() if answer is not VoterResponse.SILENT)
        return f"open, {heard} of {counted(len(tally.answers), 'vote')}" if kept.open else "closed, not settled yet"
    if tally.chosen is None:
        return "nothing was chosen, and all stays as it is"
    approvals, deciding = tally.approvals[tally.chosen.strategy], kept.poll.question.value.deciding
    approve = f"{len(approvals)} of {len(deciding)} approve of {tally.chosen.strategy}"
    if settled.step is None:
        return f"{approve}, but it was not possible any more [{settled.code}]"
    return f"{approve}: step {settled.step}"


def _step(kept: Kept) -> int | None:
    return None if kept.settlement is None else kept.settlement.step


def kept_data(kept: Kept, cast: Cast) -> Data:
    """Return the state of a poll as plain data."""
    tally, question = kept.poll.tally(), kept.poll.question.value
    return {
        **question_data(kept.poll.id, question, cast),
        "open": kept.open,
        "answers": dict(sorted((cast.show(voter), str(answer)) for voter, answer in tally.answers.items())),
        "votes": [vote_data(vote.value, question, cast) for vote in kept.poll.votes],
        "approvals": {str(strategy): sorted(map(cast.show, who)) for strategy, who in tally.approvals.items()},
        "chosen": None if kept.open or tally.chosen is None else str(tally.chosen.strategy),
        "step": _step(kept),
        "code": None if kept.settlement is None or not kept.settlement.code else kept.settlement.code,
    }


def kept_row(kept: Kept, now: datetime) -> tuple[str, ...]:
    """Return a poll as a row of a table."""
    question = kept.poll.question.value
    late = " (its deadline has passed: `tally` closes it)" if kept.open and question.deadline <= now else ""
    return (poll_name(kept.poll.id), question.candidate, instant_text(question.deadline), state_text(kept) + late)
