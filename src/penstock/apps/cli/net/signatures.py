"""Sign for an owner: each statement is stored before it is sent.

(1) The chain is taken, so that no other process goes on with it, and verified. (2) The broker says how far the owner's
policy is there: a chain that ends before that is an old copy, and going on with it would fork the policy. (3) What the
broker lacks is handed in again. (4) The next event or time-stamp is signed, (5) written to the disk, and (6) handed in.
A crash after (5) is made good by (3), in the next run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

from penstock.apps.cli.net.chain import Event, OwnerSigner, read_count_of, told_events
from penstock.apps.cli.shared.session import Warned
from penstock.broker.client.client import Client
from penstock.errors import RefusedError
from penstock.store.files.policy_files import Chain, ChainFile, HeldChain
from penstock.trust.policy.stamps import TimeStamp
from penstock.trust.policy.state import PolicyAuthor
from penstock.trust.signed import SignedValue

#: for how long another process may keep the chain
TURN: Final = 10.0
_PAUSE: Final = 0.05

Sign: TypeAlias = Callable[[PolicyAuthor, datetime], Sequence[Event]]
"""Signs the next events of a chain; none where there is nothing to say."""


@dataclass(slots=True)
class Signed:
    """What was signed and handed in, and what had to be handed in again."""

    events: Sequence[Event] = ()
    again: list[int] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    #: the last event of the chain
    number: int = 0


def clock() -> datetime:
    """Return the time. What an owner signs is signed when it has its turn, which may be long after a command began."""
    return datetime.now(UTC)


def author_of(desk: OwnerSigner, chain: Chain, stamp: SignedValue[TimeStamp] | None) -> PolicyAuthor:
    """Return who goes on with a chain. Raises what `PolicyAuthor.resume` raises."""
    author = PolicyAuthor(desk.key)
    author.resume(chain.since(0), stamp)
    return author


@asynccontextmanager
async def holding(file: ChainFile) -> AsyncIterator[HeldChain]:
    """Take a chain when it is free. Raises as `ChainFile.hold`."""
    with await _take(file, asyncio.get_running_loop().time() + TURN) as held:
        yield held


async def _take(file: ChainFile, deadline: float) -> HeldChain:
    while True:
        try:
            return file.hold()
        except RefusedError as error:
            if error.code != "evolution.busy" or asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(_PAUSE)


async def sign_events(desk: OwnerSigner, client: Client, sign: Sign) -> Signed:
    """Sign the next events and hand them in; the module has the steps.

    Raises `RefusedError`: `evolution.old-chain`, `evolution.forked`, `evolution.unchecked`, `evolution.backwards`, what
    the broker refuses; and what reading and writing the chain raises.
    """
    async with holding(desk.file) as held:
        done = Signed()
        await catch_up(desk, client, held, done)
        done.events = sign(author_of(desk, held.chain, held.state.stamp), clock())
        if done.events:
            held.append(done.events)
            await _hand_in(client, held, done.events)
        done.number = held.chain.number
        return done


async def catch_up(desk: OwnerSigner, client: Client, held: HeldChain, done: Signed) -> None:
    """Make sure that the chain is the owner's last word, and that the broker has all of it. Raises as `sign_events`."""
    held.check(desk.principal)
    lacking = held.chain.since(await _number_at(desk, client, held))
    if held.cut():
        text = f"`{desk.file.path}`: an event that was never sent was cut off"
        done.warnings.append(Warned("evolution.torn", text))
    await _hand_in(client, held, lacking)
    held.note(handed_in=held.chain.number)
    done.again += [event.value.number for event in lacking]


async def _number_at(desk: OwnerSigner, client: Client, held: HeldChain) -> int:
    """Return the last event that the broker has."""
    chain = held.chain
    try:
        told = await client.policy(desk.principal, max(0, chain.number - 1))
    except RefusedError as error:
        if error.code != "broker.not-operator":
            raise
        if desk.unchecked:
            return held.state.handed_in
        raise RefusedError(
            "evolution.unchecked",
            "the broker does not tell whether the chain is the last word of its owner",
            hint="connect as the owner or as an operator, or say --unchecked",
        ) from None
    known = read_count_of(told, "known")
    if known > chain.number:
        raise RefusedError(
            "evolution.old-chain",
            f"`{desk.file.path}` ends with policy event {chain.number}, and the broker knows of {known}",
            hint="get what is missing with `penstock net chain fetch`",
        )
    others = [event for event in told_events(told, desk.principal) if event.value.number == chain.number]
    if told.get("state") == "forked" or any(event.digest != chain.head for event in others):
        raise RefusedError(
            "evolution.forked",
            f"the broker has another policy event under a number up to {chain.number}",
            hint="find out who else has the key; the operators of all brokers have to settle it",
        )
    return read_count_of(told, "number")


async def _hand_in(client: Client, held: HeldChain, events: Sequence[Event]) -> None:
    for event in events:
        await client.evolve(event.to_bytes())
    if events:
        held.note(handed_in=events[-1].value.number)
