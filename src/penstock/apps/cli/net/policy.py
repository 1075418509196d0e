"""`penstock net publish`, `revoke`, `install`, `remove`, `require-stamps`, `checkpoint`: an owner changes policy."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.apps.cli.net.chain import Event, OwnerSigner, event_data, other_chain, show_events, signing_options
from penstock.apps.cli.net.signatures import Sign, Signed, author_of, clock, sign_events
from penstock.apps.cli.net.status import plain, show_progress, why_waited_for
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.broker_client import talk, until
from penstock.apps.cli.shared.credentials import Shelf, load_credentials, load_type
from penstock.apps.cli.shared.describe import Wording, listed, table, value_text
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import JSON
from penstock.apps.cli.shared.session import Warned, say, say_json, warn
from penstock.apps.cli.shared.terminal import showing
from penstock.broker.client.client import Client
from penstock.broker.evolution.completeness import BrokerProgress
from penstock.codec.wire import Wire
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.guard import Agreement
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.policy.events import (
    Agree,
    Change,
    EndAgreement,
    ForgetProfiles,
    Install,
    PublishProfiles,
    Remove,
    RequireStamps,
    Revoke,
)
from penstock.trust.policy.state import PolicyAuthor, PolicyState, packed
from penstock.trust.policy.state import publish as publish_change
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, read_statements

# ----------------------------------------------------------------------------------------------------------------------
# Waiting until a policy event is complete: who enforces it, and who stops by himself when its time has run out.


#: seconds between two questions: at first, and at most
_PAUSES: Final = (0.01, 0.2)
_DONE: Final = (BrokerProgress.ACKNOWLEDGED, BrokerProgress.RUN_OUT)


@dataclass(slots=True)
class Awaited:
    """A policy event, and how far it is with each broker that is trusted with something of its owner's."""

    owner: Principal
    number: int
    complete: datetime | None = None
    brokers: Mapping[str, Wire] = field(default_factory=dict)
    #: what the broker tells of the owner's policy
    state: Mapping[str, Wire] = field(default_factory=dict)

    def take(self, status: Mapping[str, Wire]) -> None:
        """Take what a broker says; of an event that it shows no longer, the next one says as much."""
        state = table(table(status.get("policy")).get(str(self.owner)))
        for event in map(table, listed(state.get("events"))):
            number = event.get("number")
            if isinstance(number, int) and number >= self.number:
                complete = event.get("complete")
                self.complete = complete if isinstance(complete, datetime) else None
                self.brokers, self.state = table(event.get("brokers")), state
                return

    def rows(self, names: NameBook) -> Iterator[tuple[str, str, str, str]]:
        """Yield a row for each broker: who it is, how far, since or until when, and why it is waited for."""
        for broker, standing in self.brokers.items():
            told = table(standing)
            progress, at = str(told.get("progress", "")), told.get("at")
            mark = "✓" if progress in _DONE else "✗"
            word = "since" if progress in _DONE else "until at the latest"
            when = f"{word} {value_text(at)}" if isinstance(at, datetime) else ""
            why = "" if progress in _DONE else why_waited_for(self.state, broker)
            yield names.show_text(broker), f"{mark} {progress}", when, why

    def text(self, names: NameBook) -> str:
        """Say in a few lines how far it is."""
        rows = list(self.rows(names))
        done = sum(progress.startswith("✓") for _, progress, _, _ in rows)
        lines = [f"policy event {self.number}: {done} of {len(rows)} brokers"]
        return "\n".join(lines + ["  ".join(row).rstrip() for row in rows])

    def show(self, names: NameBook) -> None:
        """Show it to people."""
        done = f"✓ complete since {value_text(self.complete)}" if self.complete else "✗ not complete"
        paint.line(f"policy event {self.number} {done}")
        show_progress(("broker", "progress", "when", "why"), list(self.rows(names)))

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        complete = None if self.complete is None else value_text(self.complete)
        return {"number": self.number, "complete": complete, "brokers": plain(dict(self.brokers))}

    def check(self) -> None:
        """Raise `RefusedError` (`evolution.incomplete`) where not all brokers are done."""
        if self.complete is None:
            none = not self.brokers
            raise RefusedError(
                "evolution.incomplete",
                f"policy event {self.number} is not complete",
                hint="no broker is known that may carry a type of yours: grant `route` to those that do"
                if none
                else "`penstock net show` says whom it waits for; for a broker that is gone, run `penstock net retire`",
            )


async def wait_for(
    awaited: Awaited, client: Client, names: NameBook, stop: asyncio.Event, timeout: float | None
) -> None:
    """Wait until an event is complete, the time is over, or somebody wants to stop. Raises `RefusedError`."""
    with showing(lambda: awaited.text(names)), suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await until(stop, _complete(awaited, client))


async def _complete(awaited: Awaited, client: Client) -> None:
    pause, longest = _PAUSES
    while True:
        # A broker that starts again comes back, and what it knew with it.
        with suppress(FailedError):
            awaited.take(await client.status())
        if awaited.complete is not None:
            return
        await asyncio.sleep(pause)
        pause = min(longest, 2 * pause)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock net publish`, `revoke`, `install`, `remove`, `require-stamps`, `checkpoint`: an owner changes policy.


F = TypeVar("F", bound=Callable[..., Any])

Plan = Callable[[PolicyState], Iterable[Change]]
"""Says what is to be changed, given what holds; nothing where all of it holds already."""


def change_options(function: F) -> F:
    """Add what the commands share that change policy."""
    for option in (
        options.output_option(),
        click.option("--dry-run", is_flag=True, help="Show what would be signed; sign, write and send nothing."),
        click.option(
            "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="With --wait: for so long at most."
        ),
        click.option(
            "--wait",
            is_flag=True,
            help="Wait until every broker that is trusted with your types enforces it, or has stopped. For operators.",
        ),
    ):
        function = option(function)
    return signing_options(function)


# The commands.


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="CERT...")
@change_options
@example("penstock net publish met.cert --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key --wait")
def publish(*, files: tuple[str, ...], **rest: Any) -> None:
    """Publish certificates: every broker that serves your types goes by them from then on."""
    bag = load_credentials(files)
    _change(lambda state: _publications(state, bag), **rest)


@click.command()
@click.argument("certificates", nargs=-1, required=True, metavar="CERT|ID...")
@change_options
@example(
    """
penstock net revoke met.cert --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key --wait
"""
)
def revoke(*, certificates: tuple[str, ...], **rest: Any) -> None:
    """Revoke certificates, by file or by id. There is no way back: to grant the same again, issue a new certificate.

    With --wait the command ends when nothing more is delivered that the revocation forbids.
    """
    ids = tuple(dict.fromkeys(id_ for written in certificates for id_ in _ids(written)))
    _change(lambda state: _revocations(state, ids), **rest)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="TYPE...")
@options.shelf_options
@change_options
@example("penstock net install golf.type --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key")
def install(*, files: tuple[str, ...], parent: tuple[str, ...], previous: tuple[str, ...], **rest: Any) -> None:
    """Install signed types of yours at every broker that follows your policy; parents first."""
    types = [load_type(file) for file in files]
    shelf = Shelf.of(*parent, *previous, *files)
    _change(lambda state: _installations(state, types, shelf, clock()), **rest)


@click.command()
@click.argument("types", nargs=-1, required=True, metavar="OWNER/NAME@VERSION...")
@change_options
@example(
    """
penstock net remove pito/org.pito.Golf@0 --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key
"""
)
def remove(*, types: tuple[str, ...], **rest: Any) -> None:
    """Remove types that you have installed, at every broker that follows your policy."""

    def plan(desk: OwnerSigner) -> Plan:
        names = [name for name in map(desk.call.type, types) if isinstance(name, TypeName)]
        return lambda state: _removals(state, names)

    _change_with(plan, **rest)


@click.command("require-stamps")
@change_options
@example("penstock net require-stamps --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key")
def require_stamps(**rest: Any) -> None:
    """Require time-stamps: a broker that has none of yours, or an old one, delivers none of your types.

    Start `penstock net stamp --every` first, or nothing is delivered. There is no way back.
    """
    _change(lambda state: () if state.stamps_required else (RequireStamps(),), **rest)


@click.command()
@change_options
@example("penstock net checkpoint --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key")
def checkpoint(**rest: Any) -> None:
    """Say all of your policy again: brokers forget what came before, and go past what they could not apply."""
    run_signing(lambda _desk: lambda author, now: author.checkpoint(now), **rest)


# What is to be changed.


def _publications(state: PolicyState, bag: Credentials) -> Iterable[Change]:
    gone = [certificate for certificate in bag if certificate.id in state.revoked]
    if gone:
        raise RefusedError(
            "evolution.revoked",
            f"{gone[0].id} was revoked, which has no way back",
            hint="issue a new certificate, and publish that",
        )
    known = {certificate.id for certificate in state.credentials}
    new = [certificate for certificate in bag if certificate.id not in known]
    quorums = [quorum for quorum in bag.quorums if quorum not in state.credentials.quorums]
    return (publish_change(*new, quorums=quorums),) if new or quorums else ()


def _revocations(state: PolicyState, ids: Sequence[str]) -> Iterable[Change]:
    new = tuple(id_ for id_ in ids if id_ not in state.revoked)
    return (Revoke(new),) if new else ()


def _ids(written: str) -> list[str]:
    """Return the ids that a word means: an id, or those of the certificates in a file."""
    if written.startswith("cert:") and not Path(written).exists():
        return [written]
    found = [certificate.id for certificate in load_credentials((written,))]
    if not found:
        raise MalformedError("cert.none", f"`{written}` holds no certificate", hint="give a file that holds one")
    return found


def _installations(
    state: PolicyState, types: Sequence[UnverifiedType], shelf: Shelf, now: datetime
) -> Iterable[Change]:
    known = Shelf({**state.types, **shelf.types})
    for unverified in types:
        # A broker that cannot install a type acknowledges nothing from then on: it is verified before it is signed.
        known.verify(unverified, now)
        if state.types.get(unverified.definition.name) != unverified:
            yield Install(unverified)


def _removals(state: PolicyState, names: Sequence[TypeName]) -> Iterable[Change]:
    for name in names:
        if name not in state.types:
            raise RefusedError(
                "evolution.not-installed",
                f"`{name.name}@{name.version}` was not installed by your policy",
                hint="`penstock net chain show` says what was; the operator of a broker takes out what is in its files",
            )
        yield Remove(name)


# Signing it.


def _change(plan: Plan, **rest: Any) -> None:
    _change_with(lambda _desk: plan, **rest)


def _change_with(planned: Callable[[OwnerSigner], Plan], **rest: Any) -> None:
    def sign(desk: OwnerSigner) -> Sign:
        plan = planned(desk)

        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            changes = tuple(plan(author.state))
            return [author.change(now, *changes)] if changes else []

        return events

    run_signing(sign, **rest)


Learn = Callable[[OwnerSigner, Mapping[str, Wire]], tuple[Warned, ...]]
"""Is given the broker's status before anything is signed; returns what the owner should know."""


def run_signing(  # noqa: PLR0913  # what is signed, and an argument for each option
    sign: Callable[[OwnerSigner], Sign],
    *,
    learn: Learn | None = None,
    wait: bool,
    timeout: float | None,
    dry_run: bool,
    output: str,
    **desk: Any,
) -> None:
    """Sign what is to be changed, hand it in, and say what came of it. Raises what signing and the broker raise."""
    owner = OwnerSigner.of(**desk)

    async def learned(_stop: asyncio.Event) -> tuple[Warned, ...]:
        if learn is None:
            return ()
        async with owner.call.client() as client:
            return learn(owner, await client.status())

    if dry_run:
        warnings = () if learn is None else talk(learned)
        rehearsed = _rehearse(owner, sign(owner))
        rehearsed.warnings.extend(warnings)
        _show(owner, rehearsed, None, output, dry_run=True)
        return

    async def conversation(stop: asyncio.Event) -> tuple[Signed, Awaited | None]:
        warnings = await learned(stop)
        async with owner.call.client() as client:
            if wait:
                # Whoever may not ask should learn it before anything is signed.
                await _check_waiting(client)
            done = await sign_events(owner, client, sign(owner))
            done.warnings.extend(warnings)
            if not wait or not done.number:
                return done, None
            awaited = Awaited(owner.principal, done.number)
            await wait_for(awaited, client, owner.names, stop, timeout)
            return done, awaited

    done, awaited = talk(conversation)
    _show(owner, done, awaited, output, dry_run=False)
    if awaited is not None:
        awaited.check()


async def _check_waiting(client: Client) -> None:
    """Check that the broker will tell how far it is. Raises `RefusedError` (`broker.not-operator`)."""
    try:
        await client.status()
    except RefusedError as error:
        if error.code == "broker.not-operator":
            error.message = f"{error.message}: nothing is signed"
            error.hint = "go without --wait, and have an operator look with `penstock net show`; or be made one"
        raise


def _rehearse(desk: OwnerSigner, sign: Sign) -> Signed:
    """Return what would be signed. Raises what signing it raises, as far as files tell."""
    chain, state = desk.file.read(), desk.file.state()
    if not chain.torn:
        chain.verify()
    if chain.owner not in {None, desk.principal}:
        raise other_chain(desk)
    return Signed(sign(author_of(desk, chain, None if state is None else state.stamp), clock()))


def _show(desk: OwnerSigner, done: Signed, awaited: Awaited | None, output: str, *, dry_run: bool) -> None:
    warn(*done.warnings)
    if output == JSON:
        say_json(
            {
                "owner": str(desk.principal),
                "chain": str(desk.file.path),
                "dry_run": dry_run,
                "events": [event_data(event) for event in done.events],
                "again": done.again,
                "completion": None if awaited is None else awaited.as_dict(),
                "warnings": [warning.as_dict() for warning in done.warnings],
            }
        )
        return
    if done.again:
        say(f"handed in again: policy events {', '.join(map(str, done.again))}")
    if not done.events:
        say("nothing to sign: it is so already")
    else:
        show_events(done.events, Wording(desk.names))
        say("nothing was signed, this is a rehearsal" if dry_run else f"signed into {desk.file.path}, and handed in")
    if awaited is not None:
        awaited.show(desk.names)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock net agree`, `end-agreement`, `forget`: an owner announces what was agreed on about its types.


AgreementPlan = Callable[[OwnerSigner, PolicyState], Iterable[Change]]
"""Says what is to be changed, given whose policy it is and what holds."""


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="AGREEMENT...")
@change_options
@example("penstock net agree plant.agreement --broker penstock://127.0.0.1:7600 --network plant/Floor --key plant.key")
def agree(*, files: tuple[str, ...], **rest: Any) -> None:
    """Announce agreed rules about your types, and profiles: every broker enforces them from then on.

    `penstock moderator compile` writes such files. An agreement takes the place of the one of its name, and a profile
    that of the one before; those who have none may neither publish nor subscribe to what was agreed on.
    """
    statements = [statement for file in files for statement in _load(file)]
    _change_agreement(lambda desk, state: _announcements(statements, desk, state), **rest)


@click.command("end-agreement")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@example("penstock net end-agreement plant --broker penstock://127.0.0.1:7600 --network plant/Floor --key plant.key")
def end_agreement(*, names: tuple[str, ...], **rest: Any) -> None:
    """End agreements: who may publish and subscribe is what certificates say again."""

    def ended(_desk: OwnerSigner, state: PolicyState) -> Iterator[Change]:
        for name in names:
            if name not in state.agreements:
                known = ", ".join(state.agreements) or "none"
                raise RefusedError(
                    "evolution.no-agreement",
                    f"you have announced no agreement `{name[:80]}`",
                    hint=f"there are: {known}",
                )
            yield EndAgreement(name)

    _change_agreement(ended, **rest)


@click.command()
@click.argument("principals", nargs=-1, required=True, metavar="WHO...")
@change_options
@example("penstock net forget ada --broker penstock://127.0.0.1:7600 --network plant/Floor --key plant.key")
def forget(*, principals: tuple[str, ...], **rest: Any) -> None:
    """Forget what you have said about somebody: who has no profile may have nothing that was agreed on."""

    def forgotten(desk: OwnerSigner, state: PolicyState) -> Iterator[Change]:
        known = [who for who in map(desk.names.principal, principals) if who in state.profiles]
        if known:
            yield ForgetProfiles(tuple(dict.fromkeys(known)))

    _change_agreement(forgotten, **rest)


def _load(file: str) -> list[SignedValue[Agreement] | SignedValue[ProfileClaim]]:
    data = read_bytes(file)
    with within(file):
        return [statement.verify() for statement in read_statements(data, Agreement, ProfileClaim)]  # type: ignore[misc]  # of either kind


def _announcements(
    statements: Iterable[SignedValue[Agreement] | SignedValue[ProfileClaim]], desk: OwnerSigner, state: PolicyState
) -> Iterator[Change]:
    """Yield what is new: profiles first, so that nobody is shut out in between."""
    agreements: list[Change] = []
    for statement in statements:
        match statement.value:
            case Agreement() as agreement:
                if agreement.owner != desk.principal:
                    raise RefusedError(
                        "evolution.foreign-agreement",
                        f"the agreement `{agreement.name}` is about types of {agreement.owner.short}",
                        hint="each owner announces what was agreed on about its own types",
                    )
                if state.agreements.get(agreement.name) != statement.to_sexp():
                    agreements.append(Agree(agreement.name, statement.to_sexp()))
            case ProfileClaim() as claim:
                known = state.profiles.get(claim.of)
                if known is None or known.digest != statement.digest:
                    yield PublishProfiles((statement.unverified(),))
    yield from agreements


def _change_agreement(plan: AgreementPlan, **rest: Any) -> None:
    def sign(desk: OwnerSigner) -> Sign:
        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            changes = list(plan(desk, author.state))
            # Many profiles do not fit into one event.
            return [author.change(now, *portion) for portion in packed(changes) if portion]

        return events

    run_signing(sign, **rest)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock net retire`: a broker that is gone is not waited for any more.


@click.command()
@click.argument("brokers", nargs=-1, required=True, metavar="BROKER...")
@change_options
@example("penstock net retire old --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key --wait")
def retire(*, brokers: tuple[str, ...], **rest: Any) -> None:
    """Retire brokers: revoke the certificates that make them brokers, so that no change waits for them any more.

    With the coordinator's key a broker loses its right `broker` on the network. With the key of another owner it loses
    its right to carry that owner's types. There is no way back: for the broker to return, issue a new certificate.

    A broker that goes by time-stamps is waited for until its last stamp is over. One that does not go by them can go on
    delivering to its own clients if it still runs and is cut off: stop it first.
    """
    ids: list[str] = []

    def learn(desk: OwnerSigner, status: Mapping[str, Wire]) -> tuple[Warned, ...]:
        state = table(table(status.get("policy")).get(str(desk.principal)))
        known = table(state.get("brokers"))
        warnings: list[Warned] = []
        for word in brokers:
            told = known.get(str(desk.names.principal(word)))
            found = [str(id_) for id_ in listed(table(told).get("certificates"))]
            if told is None or not found:
                raise _not_waited_for(word, known, desk)
            ids.extend(found)
            if table(told).get("stamped") is not True:
                warnings.append(Warned("evolution.unstamped-broker", _GOES_ON.format(word)))
        return tuple(warnings)

    def sign(_desk: OwnerSigner) -> Sign:
        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            new = tuple(dict.fromkeys(id_ for id_ in ids if id_ not in author.state.revoked))
            return [author.change(now, Revoke(new))] if new else []

        return events

    run_signing(sign, learn=learn, **rest)


_GOES_ON: Final = (
    "{} does not go by time-stamps: if it still runs and is cut off, it goes on delivering to its own clients; stop it"
)


def _not_waited_for(word: str, known: Iterable[str], desk: OwnerSigner) -> RefusedError:
    names = ", ".join(desk.names.show_text(broker) for broker in known) or "none"
    return RefusedError(
        "evolution.no-such-broker",
        f"no change of yours waits for `{word[:80]}`, or nothing that you can revoke makes it a broker",
        hint=f"brokers that are waited for: {names}",
    )
