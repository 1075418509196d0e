"""An owner's chain of policy events: `penstock net chain`, and how the next policy event or time-stamp is signed.

(1) The chain file is locked, so that no other process extends it, and verified. (2) The broker says how far the owner's
policy is there: a chain that ends before that is an old copy, and extending it would fork the policy. (3) What the
broker lacks is sent again. (4) The next event or time-stamp is signed, (5) written to the disk, and (6) sent. A crash
after (5) is repaired by (3) in the next run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

import click

from penstock.apps.cli.shared.broker_client import Call, ClientOptions, talk
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    with_example,
)
from penstock.apps.cli.shared.credentials import find_types
from penstock.apps.cli.shared.describe import Wording, name_data, value_text
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import NamesOption, open_key
from penstock.apps.cli.shared.session import CommandSession, Verbs, Warned
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.broker.client.client import Client
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.store.files.policy_files import Chain, ChainFile, HeldChain
from penstock.trust.policy_events import (
    Agree,
    Change,
    EndAgreement,
    ForgetProfiles,
    Install,
    PolicyEvent,
    PublishCertificates,
    PublishProfiles,
    Remove,
    RequireStamps,
    Revoke,
    TimeStamp,
)
from penstock.trust.policy_state import PolicyAuthor
from penstock.trust.signed import SignedValue, parse_signed

# ----------------------------------------------------------------------------------------------------------------------
# An owner's key and chain, and the broker to send to.


_SUFFIX: Final = ".chain"


@dataclass(frozen=True, slots=True)
class OwnerSigner:
    """An owner's key and chain, and the connection to the broker that gets what it signs."""

    key: SigningKey
    call: Call
    file: ChainFile
    unchecked: bool = False

    @property
    def principal(self) -> Principal:
        """The owner."""
        return self.key.principal

    @property
    def names(self) -> NameBook:
        """The reader's names."""
        return self.call.names

    def wording(self) -> Wording:
        """Return words for people, with the types that are known here."""
        return Wording(self.names, *find_types(clock(), str(self.file.path)))


@option_class
class OwnerOptions:
    """Options of an owner: a connection, its chain, and perhaps another key to connect with."""

    client: ClientOptions
    chain: str | None = option(
        "--chain",
        metavar="FILE",
        help="Use this chain of the owner's policy events (default: the key's name with .chain).",
    )
    as_key: str | None = option("--as", metavar="FILE", help="Connect with this key (default: the owner's).")
    as_passphrase_file: str | None = option(
        "--as-passphrase-file",
        metavar="FILE",
        help="Read the passphrase of the --as key from this file (default: ask for it).",
    )

    def signer(self, *, unchecked: bool = False) -> OwnerSigner:
        """Read the files that the options name. Raises what reading raises."""
        call = self.client.call()
        path = Path(call.key_file).with_suffix(_SUFFIX) if self.chain is None else Path(self.chain)
        caller = call if self.as_key is None else replace(call, key=open_key(self.as_key, self.as_passphrase_file))
        return OwnerSigner(call.key, caller, ChainFile(path), unchecked)


@option_class
class OwnerSigningOptions:
    """Options of an owner that signs."""

    unchecked: bool = option(
        "--unchecked",
        is_flag=True,
        help="Sign even if the broker does not say how far the chain is: it tells only the owner and operators.",
    )
    owner: OwnerOptions

    def signer(self) -> OwnerSigner:
        """Read the files that the options name. Raises what reading raises."""
        return self.owner.signer(unchecked=self.unchecked)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock net chain`: show, verify and fetch the chain.


Event = SignedValue[PolicyEvent]


# The content of an event.


def event_data(event: Event) -> dict[str, object]:
    """Return a policy event as plain data."""
    value = event.value
    return {
        "number": value.number,
        "digest": event.digest.hex(),
        "previous": value.previous.hex(),
        "time": value_text(value.time),
        "checkpoint": value.checkpoint,
        "changes": [_change_data(change) for change in value.changes],
    }


def _change_data(change: Change) -> dict[str, object]:
    match change:
        case PublishCertificates(bag):
            return {"publish": [certificate.id for certificate in bag.certificates]}
        case Revoke(certificates):
            return {"revoke": list(certificates)}
        case Install(unverified):
            return {"install": name_data(unverified.definition.name)}
        case Remove(name):
            return {"remove": name_data(name)}
        case RequireStamps():
            return {"require-stamps": True}
        case Agree(agreed):
            return {"agree": agreed}
        case EndAgreement(ended):
            return {"end-agreement": ended}
        case PublishProfiles(profiles):
            return {"describe": [str(profile.value.of) for profile in profiles]}
        case ForgetProfiles(principals):
            return {"forget": [str(principal) for principal in principals]}


def event_lines(event: Event, wording: Wording) -> Iterator[str]:
    """Return sentences about what a policy event does, one for each change."""
    if event.value.checkpoint is not None:
        parts = event.value.checkpoint
        yield "starts from nothing" + (f", with the next {parts}" if parts else "")
    for change in event.value.changes:
        yield from _change_lines(change, wording)


def _change_lines(change: Change, wording: Wording) -> Iterator[str]:
    match change:
        case PublishCertificates(bag):
            for certificate in bag.certificates:
                yield f"publishes {certificate.id}"
                yield f"  {wording.line(certificate.statement)}"
        case Revoke(certificates):
            yield from (f"revokes {id_}" for id_ in certificates)
        case Install(unverified):
            name = unverified.definition.name
            yield f"installs {name.name}@{name.version}"
        case Remove(name):
            yield f"removes {name.name}@{name.version}"
        case RequireStamps():
            yield "requires time-stamps"
        case Agree(agreed):
            yield f"announces the agreement {agreed}"
        case EndAgreement(ended):
            yield f"ends the agreement {ended}"
        case PublishProfiles(profiles):
            for profile in profiles:
                yield f"describes {wording.who(profile.value.of)}, by the word of {wording.who(profile.value.said_by)}"
        case ForgetProfiles(principals):
            yield from (f"forgets what is known about {wording.who(principal)}" for principal in principals)


def events_table(events: Iterable[Event], wording: Wording) -> Shown:
    """Return policy events as a table."""
    rows: list[tuple[str, str, str, str]] = []
    for event in events:
        place = (str(event.value.number), event.digest.hex()[:12], value_text(event.value.time))
        for line in list(event_lines(event, wording)) or ["changes nothing"]:
            rows.append((*place, line))
            place = ("", "", "")
    return grid_table(("event", "digest", "signed", "what it does"), rows)


# The commands.


@click.group(
    cls=Verbs,
    help=with_example(
        "Show, verify and fetch your chain of policy events: what you have signed so far.",
        "penstock net chain verify pito.chain",
    ),
)
def chain() -> None:
    """Group the commands about a chain."""


@option_class
class _ChainFile:
    file: str = argument(type=click.Path(path_type=str))
    output: str = output_option()
    names: NamesOption


@command(chain, example="penstock net chain show pito.chain")
def show(session: CommandSession, options: _ChainFile) -> CommandAnswer:
    """Show the events of a chain, as far as it is valid. The exit status is 1 if part of it is not."""
    wording = Wording(options.names.load(), *find_types(session.now, options.file))
    found = _read(options.file)
    shown = [events_table(found.events, wording)]
    if found.owner is not None:
        shown.insert(0, f"policy of {wording.who(found.owner)}")
    data = {**_chain_data(found), "events": [event_data(event) for event in found.events]}
    return CommandAnswer(data, shown, found.problem)


@command(chain, example="penstock net chain verify pito.chain && echo good")
def verify(options: _ChainFile) -> CommandAnswer:
    """Check the signatures of a chain, and that each event follows the one before. The exit status is 1 if not."""
    names = options.names.load()
    found = _read(options.file)
    owner = "nobody" if found.owner is None else names.show(found.owner)
    good = f"✓ policy of {owner}, {len(found.events)} events, up to number {found.number}"
    return CommandAnswer(_chain_data(found), [good] if found.problem is None else [], found.problem)


def _read(file: str) -> Chain:
    path = Path(file)
    if not path.exists():
        raise FailedError("file.missing", f"there is no file `{file}`", hint="check the path")
    return ChainFile(path).read()


def _chain_data(found: Chain) -> dict[str, object]:
    problem = found.problem
    return {
        "ok": problem is None,
        "owner": None if found.owner is None else str(found.owner),
        "number": found.number,
        "head": found.head.hex(),
        **({} if problem is None else {"code": problem.code, "reason": problem.message}),
    }


@option_class
class _Fetch:
    owner: OwnerOptions
    output: str = output_option()


@command(
    chain, example="penstock net chain fetch --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key"
)
def fetch(options: _Fetch) -> CommandAnswer:
    """Get the events that your chain lacks from a broker: after an old copy was restored, or the file was lost.

    A broker keeps all events since your last checkpoint. Everything is verified before it is saved.
    """
    owner = options.owner.signer()

    async def ask(_stop: asyncio.Event) -> tuple[int, Chain]:
        async with owner.call.client() as client:
            with owner.file.hold() as held:
                before = held.chain.number
                await _fetch(owner, client, held)
                return before, held.chain

    before, found = talk(ask)
    new = found.number - before
    data = {**_chain_data(found), "chain": str(owner.file.path), "fetched": new}
    line = f"{owner.file.path} goes up to policy event {found.number}, of which {new} are new"
    return CommandAnswer(data, [line])


def other_chain(owner: OwnerSigner) -> RefusedError:
    """Return the error for a file that is the chain of another owner."""
    return RefusedError(
        "evolution.other-owner",
        f"`{owner.file.path}` is the chain of another owner",
        hint="give your own chain with `--chain`, and your key with `--key`",
    )


async def _fetch(owner: OwnerSigner, client: Client, held: HeldChain) -> None:
    """Append the events that the chain lacks. Raises `RefusedError`: `evolution.other-owner`, `evolution.old-chain`."""
    held.cut()
    if held.chain.owner not in {None, owner.principal}:
        raise other_chain(owner)
    new: list[Event] = []
    known = held.chain.number
    while True:
        response = await client.policy(owner.principal, new[-1].value.number if new else held.chain.number)
        known = max(known, read_count_of(response, "known"))
        page = read_events(response, owner.principal)
        if not page:
            break
        new += page
    if new and held.chain.events and new[0].value.number != held.chain.number + 1:
        raise RefusedError(
            "evolution.old-chain",
            f"the broker does not have the policy events between {held.chain.number} and {new[0].value.number}",
            hint=f"move `{owner.file.path}` away, and fetch again",
        )
    if new:
        held.append(new)
        held.note(handed_in=held.chain.number)
    if held.chain.number < max(known, held.state.handed_in):
        raise RefusedError(
            "evolution.old-chain",
            f"there is a policy event {max(known, held.state.handed_in)}, and this broker has {held.chain.number}",
            hint="ask another broker",
        )


def read_events(response: Mapping[str, object], owner: Principal) -> list[Event]:
    """Read the policy events in an answer of a broker. Raises `MalformedError`, `RefusedError` (`evolution.*`)."""
    events = response.get("events")
    encoded = [one for one in events if isinstance(one, bytes)] if isinstance(events, list) else []
    found = [parse_signed(one, PolicyEvent).verify() for one in encoded]
    if any(event.value.owner != owner for event in found):
        raise RefusedError("evolution.other-owner", "the broker sent policy events of another owner")
    return found


def read_count_of(response: Mapping[str, object], key: str) -> int:
    """Read the number of a policy's last event in an answer. Raises `MalformedError` (`protocol.malformed`)."""
    number = response.get(key)
    if not isinstance(number, int) or number < 0:
        raise MalformedError("protocol.malformed", "the broker's answer lacks the number of the last policy event")
    return number


# ----------------------------------------------------------------------------------------------------------------------
# Sign for an owner. The module docstring lists the steps.


#: seconds to wait while another process holds the chain
TURN: Final = 10.0
_PAUSE: Final = 0.05

Sign: TypeAlias = Callable[[PolicyAuthor, datetime], Sequence[Event]]
"""Signs the next events of a chain; none if nothing changes."""


@dataclass(slots=True)
class Signed:
    """What was signed and sent, and what had to be sent again."""

    events: Sequence[Event] = ()
    again: list[int] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    #: the last event of the chain
    number: int = 0


def clock() -> datetime:
    """Return the time of signing, which may be long after the command began: it waits for the chain."""
    return datetime.now(UTC)


def author_of(desk: OwnerSigner, chain: Chain, stamp: SignedValue[TimeStamp] | None) -> PolicyAuthor:
    """Return the author that continues a chain. Raises what `PolicyAuthor.resume` raises."""
    author = PolicyAuthor(desk.key)
    author.resume(chain.since(0), stamp)
    return author


@asynccontextmanager
async def holding(file: ChainFile) -> AsyncIterator[HeldChain]:
    """Lock a chain as soon as it is free. Raises as `ChainFile.hold`."""
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
    """Sign the next events and send them. The module docstring lists the steps.

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
    """Check that the chain is up to date, and send the broker what it lacks. Raises as `sign_events`."""
    held.check(desk.principal)
    lacking = held.chain.since(await _number_at(desk, client, held))
    if held.cut():
        text = f"`{desk.file.path}`: an event that was never sent was cut off"
        done.warnings.append(Warned("evolution.torn", text))
    await _hand_in(client, held, lacking)
    held.note(handed_in=held.chain.number)
    done.again += [event.value.number for event in lacking]


async def _number_at(desk: OwnerSigner, client: Client, held: HeldChain) -> int:
    """Return the number of the last event that the broker has."""
    chain = held.chain
    try:
        response = await client.policy(desk.principal, max(0, chain.number - 1))
    except RefusedError as error:
        if error.code != "broker.not-operator":
            raise
        if desk.unchecked:
            return held.state.handed_in
        raise RefusedError(
            "evolution.unchecked",
            "the broker does not say whether the chain is up to date",
            hint="connect as the owner or as an operator, or say --unchecked",
        ) from None
    known = read_count_of(response, "known")
    if known > chain.number:
        raise RefusedError(
            "evolution.old-chain",
            f"`{desk.file.path}` ends with policy event {chain.number}, and the broker has events up to {known}",
            hint="get what is missing with `penstock net chain fetch`",
        )
    others = [event for event in read_events(response, desk.principal) if event.value.number == chain.number]
    if response.get("state") == "forked" or any(event.digest != chain.head for event in others):
        raise RefusedError(
            "evolution.forked",
            f"the broker has a different policy event with a number up to {chain.number}",
            hint="find out who else has the key; the operators of all brokers must resolve it",
        )
    return read_count_of(response, "number")


async def _hand_in(client: Client, held: HeldChain, events: Sequence[Event]) -> None:
    for event in events:
        await client.evolve(event.to_bytes())
    if events:
        held.note(handed_in=events[-1].value.number)
