"""`penstock net publish`, `revoke`, `install`, `remove`, `require-stamps`, `checkpoint`: an owner changes policy."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.apps.cli import options
from penstock.apps.cli.describe import Wording
from penstock.apps.cli.groups import example
from penstock.apps.cli.net_client import talk
from penstock.apps.cli.net_policy_chain import Event, event_data, other_chain, show_events
from penstock.apps.cli.net_policy_options import Desk, signing_options
from penstock.apps.cli.net_policy_signing import Sign, Signed, author_of, clock, sign_events
from penstock.apps.cli.net_policy_wait import Awaited, wait_for
from penstock.apps.cli.options import JSON
from penstock.apps.cli.session import Warned, say, say_json, warn
from penstock.apps.cli.trusted import Shelf, load_credentials, load_type
from penstock.broker.client import Client
from penstock.codec.wire import Wire
from penstock.errors import MalformedError, RefusedError
from penstock.model.names import TypeName
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.policy_events import Change, Install, Remove, RequireStamps, Revoke
from penstock.trust.policy_state import PolicyAuthor, PolicyState
from penstock.trust.policy_state import publish as publish_change

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

    def plan(desk: Desk) -> Plan:
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
    """Say all of your policy anew: brokers forget what came before, and go past what they could not apply."""
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


def _change_with(planned: Callable[[Desk], Plan], **rest: Any) -> None:
    def sign(desk: Desk) -> Sign:
        plan = planned(desk)

        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            changes = tuple(plan(author.state))
            return [author.change(now, *changes)] if changes else []

        return events

    run_signing(sign, **rest)


Learn = Callable[[Desk, Mapping[str, Wire]], tuple[Warned, ...]]
"""Is given the broker's status before anything is signed; returns what the owner should know."""


def run_signing(  # noqa: PLR0913  # what is signed, and an argument for each option
    sign: Callable[[Desk], Sign],
    *,
    learn: Learn | None = None,
    wait: bool,
    timeout: float | None,
    dry_run: bool,
    output: str,
    **desk: Any,
) -> None:
    """Sign what is to be changed, hand it in, and say what came of it. Raises what signing and the broker raise."""
    owner = Desk.of(**desk)

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


def _rehearse(desk: Desk, sign: Sign) -> Signed:
    """Return what would be signed. Raises what signing it raises, as far as files tell."""
    chain, state = desk.file.read(), desk.file.state()
    if not chain.torn:
        chain.verify()
    if chain.owner not in {None, desk.principal}:
        raise other_chain(desk)
    return Signed(sign(author_of(desk, chain, None if state is None else state.stamp), clock()))


def _show(desk: Desk, done: Signed, awaited: Awaited | None, output: str, *, dry_run: bool) -> None:
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
