"""The verbs of `penstock net` that change an owner's policy, and `penstock net stamp`."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.net.chain import (
    Event,
    OwnerSigner,
    OwnerSigningOptions,
    Sign,
    Signed,
    author_of,
    catch_up,
    clock,
    event_data,
    events_table,
    holding,
    other_chain,
    sign_events,
)
from penstock.apps.cli.net.status import plain, progress_table, why_waited_for
from penstock.apps.cli.shared.broker_client import talk, until
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    wants_data,
)
from penstock.apps.cli.shared.credentials import Shelf, load_credentials, load_type
from penstock.apps.cli.shared.describe import listed, table, value_text
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import Duration, ShelfOptions
from penstock.apps.cli.shared.revocations import RenewalAdvice, may_revoke
from penstock.apps.cli.shared.session import Warned, say, warn
from penstock.apps.cli.shared.terminal import Shown, showing
from penstock.broker.client.client import Client
from penstock.broker.evolution.completeness import BrokerProgress
from penstock.codec.wire import Wire
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.guard import Agreement
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.limits import STAMP_PERIOD
from penstock.trust.policy_events import (
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
from penstock.trust.policy_state import PolicyAuthor, PolicyState, packed
from penstock.trust.policy_state import publish as publish_change
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, read_statements

# ----------------------------------------------------------------------------------------------------------------------
# Wait until a policy event is complete: each broker enforces it, or has stopped because its stamp expired.


#: seconds between two requests: at first, and at most
_PAUSES: Final = (0.01, 0.2)
_DONE: Final = (BrokerProgress.ACKNOWLEDGED, BrokerProgress.RUN_OUT)


@dataclass(slots=True)
class Awaited:
    """A policy event, and its progress at each broker that has a right on its owner's types."""

    owner: Principal
    number: int
    complete: datetime | None = None
    brokers: Mapping[str, Wire] = field(default_factory=dict)
    #: the owner's policy in the broker's status
    state: Mapping[str, Wire] = field(default_factory=dict)

    def take(self, status: Mapping[str, Wire]) -> None:
        """Store a broker's status. If it does not list the event any more, a later event counts instead."""
        state = table(table(status.get("policy")).get(str(self.owner)))
        for event in map(table, listed(state.get("events"))):
            number = event.get("number")
            if isinstance(number, int) and number >= self.number:
                complete = event.get("complete")
                self.complete = complete if isinstance(complete, datetime) else None
                self.brokers, self.state = table(event.get("brokers")), state
                return

    def rows(self, names: NameBook) -> Iterator[tuple[str, str, str, str]]:
        """Yield a row for each broker: its name, its progress, since or until when, and why it is waited for."""
        for broker, standing in self.brokers.items():
            entry = table(standing)
            progress, at = str(entry.get("progress", "")), entry.get("at")
            mark = "✓" if progress in _DONE else "✗"
            word = "since" if progress in _DONE else "until at the latest"
            when = f"{word} {value_text(at)}" if isinstance(at, datetime) else ""
            why = "" if progress in _DONE else why_waited_for(self.state, broker)
            yield names.show_text(broker), f"{mark} {progress}", when, why

    def text(self, names: NameBook) -> str:
        """Return the progress in a few lines."""
        rows = list(self.rows(names))
        done = sum(progress.startswith("✓") for _, progress, _, _ in rows)
        lines = [f"policy event {self.number}: {done} of {len(rows)} brokers"]
        return "\n".join(lines + ["  ".join(row).rstrip() for row in rows])

    def show(self, names: NameBook) -> Iterator[Shown]:
        """Yield the progress for people."""
        done = f"✓ complete since {value_text(self.complete)}" if self.complete else "✗ not complete"
        yield f"policy event {self.number} {done}"
        yield progress_table(("broker", "progress", "when", "why"), list(self.rows(names)))

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        complete = None if self.complete is None else value_text(self.complete)
        return {"number": self.number, "complete": complete, "brokers": plain(dict(self.brokers))}

    def error(self) -> RefusedError | None:
        """Return an error (`evolution.incomplete`) if not all brokers are done."""
        if self.complete is not None:
            return None
        return RefusedError(
            "evolution.incomplete",
            f"policy event {self.number} is not complete",
            hint="run `penstock net show` to see the brokers it waits for, `penstock net retire` for one that is gone"
            if self.brokers
            else "no broker is known that may carry a type of yours: grant `route` to those that do",
        )


async def wait_for(
    awaited: Awaited, client: Client, names: NameBook, stop: asyncio.Event, timeout: float | None
) -> None:
    """Wait until an event is complete, the timeout is over, or the command is stopped. Raises `RefusedError`."""
    with showing(lambda: awaited.text(names)), suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await until(stop, _complete(awaited, client))


async def _complete(awaited: Awaited, client: Client) -> None:
    pause, longest = _PAUSES
    while True:
        # A broker that restarts comes back with its state.
        with suppress(FailedError):
            awaited.take(await client.status())
        if awaited.complete is not None:
            return
        await asyncio.sleep(pause)
        pause = min(longest, 2 * pause)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock net publish`, `revoke`, `install`, `remove`, `require-stamps`, `checkpoint`.


Plan = Callable[[PolicyState], Iterable[Change]]
"""Return the changes, given the current policy; none if they are already in effect."""


@option_class
class ChangeOptions:
    """The options that all commands share which change policy."""

    signing: OwnerSigningOptions
    wait: bool = option(
        "--wait",
        is_flag=True,
        help="Wait until every broker that may carry your types enforces it, or has stopped. For operators.",
    )
    timeout: float | None = option(
        "--timeout",
        type=Duration(),
        metavar="DURATION",
        help="Wait at most this long, such as 30s (default: without limit).",
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Show what would be signed, and sign, write and send nothing."
    )
    output: str = output_option()


# The commands.


@option_class
class _Publish:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="CERT...")
    change: ChangeOptions


@command(
    example="""
penstock net publish met.cert --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key --wait
"""
)
def publish(options: _Publish) -> CommandAnswer:
    """Publish certificates: every broker that serves your types then uses them."""
    bag = load_credentials(options.files)
    return _change(lambda state: _publications(state, bag, options.files), options.change)


@option_class
class _Revoke:
    certificates: tuple[str, ...] = argument(nargs=-1, required=True, metavar="CERT|ID...")
    change: ChangeOptions


@command(
    example="""
penstock net revoke met.cert --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key --wait
"""
)
def revoke(options: _Revoke) -> CommandAnswer:
    """Revoke certificates, by file or by id. This cannot be undone.

    With --wait the command ends when nothing is delivered any more that the revocation forbids. To give a right back,
    make a new certificate with `penstock cert renew --grant-again`, and publish it with `penstock net publish`.
    """
    found = {id_: one for written in options.certificates for id_, one in _ids(written).items()}

    def plan(desk: OwnerSigner) -> Plan:
        _check_revocable((one for one in found.values() if one is not None), desk)
        return lambda state: _revocations(state, tuple(found))

    return _change_with(plan, options.change)


@option_class
class _Install:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="TYPE...")
    shelf: ShelfOptions
    change: ChangeOptions


@command(
    example="penstock net install golf.type --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key"
)
def install(options: _Install) -> CommandAnswer:
    """Install your signed types at every broker that follows your policy, parents first."""
    types = [load_type(file) for file in options.files]
    shelf = options.shelf.load(*options.files)
    return _change(lambda state: _installations(state, types, shelf, clock()), options.change)


@option_class
class _Remove:
    types: tuple[str, ...] = argument(nargs=-1, required=True, metavar="OWNER/NAME@VERSION...")
    change: ChangeOptions


@command(
    example="""
penstock net remove pito/org.pito.Golf@0 --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key
"""
)
def remove(options: _Remove) -> CommandAnswer:
    """Remove types that you have installed, at every broker that follows your policy."""

    def plan(desk: OwnerSigner) -> Plan:
        names = [name for name in map(desk.call.type, options.types) if isinstance(name, TypeName)]
        return lambda state: _removals(state, names)

    return _change_with(plan, options.change)


@option_class
class _RequireStamps:
    change: ChangeOptions


@command(
    name="require-stamps",
    example="penstock net require-stamps --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key",
)
def require_stamps(options: _RequireStamps) -> CommandAnswer:
    """Require time-stamps: a broker without a current time-stamp of yours delivers none of your types.

    Start `penstock net stamp --every` first, or nothing is delivered. This cannot be undone.
    """
    return _change(lambda state: () if state.stamps_required else (RequireStamps(),), options.change)


@option_class
class _Checkpoint:
    change: ChangeOptions


@command(example="penstock net checkpoint --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key")
def checkpoint(options: _Checkpoint) -> CommandAnswer:
    """Publish your whole policy again: brokers forget earlier events, and skip those that they could not apply."""
    return run_signing(lambda _desk: lambda author, now: author.checkpoint(now), options.change)


# The changes.


def _publications(state: PolicyState, bag: Credentials, files: Sequence[str]) -> Iterable[Change]:
    gone = [certificate for certificate in bag if certificate.id in state.revoked]
    if gone:
        raise RefusedError(
            "evolution.revoked",
            f"{gone[0].id} was revoked, and a revocation cannot be undone",
            hint=f"to give the right back, {RenewalAdvice.of(gone[0].statement.issuer, *files).give_back}",
        )
    known = {certificate.id for certificate in state.credentials}
    new = [certificate for certificate in bag if certificate.id not in known]
    quorums = [quorum for quorum in bag.quorums if quorum not in state.credentials.quorums]
    return (publish_change(*new, quorums=quorums),) if new or quorums else ()


def _revocations(state: PolicyState, ids: Sequence[str]) -> Iterable[Change]:
    new = tuple(id_ for id_ in ids if id_ not in state.revoked)
    return (Revoke(new),) if new else ()


def _ids(written: str) -> dict[str, Certificate | None]:
    """Return an id, or the ids of the certificates in a file with the certificates."""
    if written.startswith("cert:") and not Path(written).exists():
        return {written: None}
    found: dict[str, Certificate | None] = {one.id: one for one in load_credentials((written,))}
    if not found:
        raise MalformedError("cert.none", f"`{written}` holds no certificate", hint="give a file that holds one")
    return found


def _check_revocable(certificates: Iterable[Certificate], desk: OwnerSigner) -> None:
    """Raise `RefusedError` (`cert.not-yours`) if revoking one of the certificates would change nothing."""
    for one in certificates:
        by = may_revoke(one.statement)
        if by is not None and desk.principal not in by:
            wording = desk.wording()
            who = " or ".join(sorted(map(wording.who, by)))
            raise RefusedError(
                "cert.not-yours",
                f"{wording.who(desk.principal)} may not revoke {wording.line(one.statement)}",
                hint=f"revoke it with the key of {who}: use --key, or --context",
                certificate=one.id,
            )


def _installations(
    state: PolicyState, types: Sequence[UnverifiedType], shelf: Shelf, now: datetime
) -> Iterable[Change]:
    known = Shelf({**state.types, **shelf.types})
    for unverified in types:
        # A broker that cannot install a type acknowledges nothing afterwards, so the type is verified first.
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


def _change(plan: Plan, options: ChangeOptions) -> CommandAnswer:
    return _change_with(lambda _desk: plan, options)


def _change_with(planned: Callable[[OwnerSigner], Plan], options: ChangeOptions) -> CommandAnswer:
    def sign(desk: OwnerSigner) -> Sign:
        plan = planned(desk)

        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            changes = tuple(plan(author.state))
            return [author.change(now, *changes)] if changes else []

        return events

    return run_signing(sign, options)


Learn = Callable[[OwnerSigner, Mapping[str, Wire]], tuple[Warned, ...]]
"""Takes the broker's status before anything is signed, and returns warnings for the owner."""


def run_signing(
    sign: Callable[[OwnerSigner], Sign], options: ChangeOptions, learn: Learn | None = None
) -> CommandAnswer:
    """Sign the changes, submit them, and return the result. Raises what signing and the broker raise."""
    owner = options.signing.signer()

    async def learned(_stop: asyncio.Event) -> tuple[Warned, ...]:
        if learn is None:
            return ()
        async with owner.call.client() as client:
            return learn(owner, await client.status())

    if options.dry_run:
        warnings = () if learn is None else talk(learned)
        rehearsed = _rehearse(owner, sign(owner))
        rehearsed.warnings.extend(warnings)
        return _answer(owner, rehearsed, None, dry_run=True)

    async def conversation(stop: asyncio.Event) -> tuple[Signed, Awaited | None]:
        warnings = await learned(stop)
        async with owner.call.client() as client:
            if options.wait:
                # If the status is refused, the owner should know it before anything is signed.
                await _check_waiting(client)
            done = await sign_events(owner, client, sign(owner))
            done.warnings.extend(warnings)
            if not options.wait or not done.number:
                return done, None
            awaited = Awaited(owner.principal, done.number)
            await wait_for(awaited, client, owner.names, stop, options.timeout)
            return done, awaited

    done, awaited = talk(conversation)
    return _answer(owner, done, awaited, dry_run=False)


async def _check_waiting(client: Client) -> None:
    """Check that the broker will report progress. Raises `RefusedError` (`broker.not-operator`)."""
    try:
        await client.status()
    except RefusedError as error:
        if error.code == "broker.not-operator":
            error.message = f"{error.message}: nothing is signed"
            error.hint = "go without --wait, and have an operator look with `penstock net show`; or be made one"
        raise


def _rehearse(desk: OwnerSigner, sign: Sign) -> Signed:
    """Return what would be signed. Raises what signing raises, as far as the files show it."""
    chain, state = desk.file.read(), desk.file.state()
    if not chain.torn:
        chain.verify()
    if chain.owner not in {None, desk.principal}:
        raise other_chain(desk)
    return Signed(sign(author_of(desk, chain, None if state is None else state.stamp), clock()))


def _answer(desk: OwnerSigner, done: Signed, awaited: Awaited | None, *, dry_run: bool) -> CommandAnswer:
    warn(*done.warnings)
    data = {
        "owner": str(desk.principal),
        "chain": str(desk.file.path),
        "dry_run": dry_run,
        "events": [event_data(event) for event in done.events],
        "again": done.again,
        "completion": None if awaited is None else awaited.as_dict(),
        "warnings": [warning.as_dict() for warning in done.warnings],
    }

    def shown() -> Iterator[Shown]:
        if done.again:
            yield f"sent to the broker again: policy events {', '.join(map(str, done.again))}"
        if not done.events:
            yield "nothing to sign: it is so already"
        else:
            yield events_table(done.events, desk.wording())
            signed = f"signed into {desk.file.path}, and sent to the broker"
            yield "nothing was signed, this is a rehearsal" if dry_run else signed
        if awaited is not None:
            yield from awaited.show(desk.names)

    return CommandAnswer(data, shown(), None if awaited is None else awaited.error())


# ----------------------------------------------------------------------------------------------------------------------
# `penstock net agree`, `end-agreement`, `remove-profile`: agreements about an owner's types.


AgreementPlan = Callable[[OwnerSigner, PolicyState], Iterable[Change]]
"""Return the changes, given the owner and the current policy."""


@option_class
class _Agree:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="AGREEMENT...")
    change: ChangeOptions


@command(
    example="""
penstock net agree plant.agreement --broker penstock://127.0.0.1:7600 --network plant/Floor --key plant.key
"""
)
def agree(options: _Agree) -> CommandAnswer:
    """Announce agreed rules about your types, and profiles: every broker then enforces them.

    `penstock moderator compile` writes such files. An agreement replaces the one with its name, and a profile the one
    before. Principals without a profile may neither publish nor subscribe to the types of the agreement.
    """
    statements = [statement for file in options.files for statement in _load(file)]
    return _change_agreement(lambda desk, state: _announcements(statements, desk, state), options.change)


@option_class
class _EndAgreement:
    names: tuple[str, ...] = argument(nargs=-1, required=True, metavar="NAME...")
    change: ChangeOptions


@command(
    name="end-agreement",
    example="penstock net end-agreement plant --broker penstock://127.0.0.1:7600 --network plant/Floor --key plant.key",
)
def end_agreement(options: _EndAgreement) -> CommandAnswer:
    """End agreements: certificates alone then decide who may publish and subscribe."""

    def ended(_desk: OwnerSigner, state: PolicyState) -> Iterator[Change]:
        for name in options.names:
            if name not in state.agreements:
                known = ", ".join(state.agreements) or "none"
                raise RefusedError(
                    "evolution.no-agreement",
                    f"you have not announced an agreement `{name[:80]}`",
                    hint=f"there are: {known}",
                )
            yield EndAgreement(name)

    return _change_agreement(ended, options.change)


@option_class
class _RemoveProfile:
    principals: tuple[str, ...] = argument(nargs=-1, required=True, metavar="WHO...")
    change: ChangeOptions


@command(
    name="remove-profile",
    example="penstock net remove-profile ada --broker penstock://127.0.0.1:7600 --network plant/Floor --key plant.key",
)
def remove_profile(options: _RemoveProfile) -> CommandAnswer:
    """Remove the profile of a principal, who then gets nothing that was agreed on."""

    def forgotten(desk: OwnerSigner, state: PolicyState) -> Iterator[Change]:
        known = [who for who in map(desk.names.principal, options.principals) if who in state.profiles]
        if known:
            yield ForgetProfiles(tuple(dict.fromkeys(known)))

    return _change_agreement(forgotten, options.change)


def _load(file: str) -> list[SignedValue[Agreement] | SignedValue[ProfileClaim]]:
    data = read_bytes(file)
    with within(file):
        return [statement.verify() for statement in read_statements(data, Agreement, ProfileClaim)]  # type: ignore[misc]  # of either kind


def _announcements(
    statements: Iterable[SignedValue[Agreement] | SignedValue[ProfileClaim]], desk: OwnerSigner, state: PolicyState
) -> Iterator[Change]:
    """Yield the changes: profiles first, so that nobody is shut out in between."""
    agreements: list[Change] = []
    for statement in statements:
        match statement.value:
            case Agreement() as agreement:
                if agreement.owner != desk.principal:
                    raise RefusedError(
                        "evolution.foreign-agreement",
                        f"the agreement `{agreement.name}` is about types of {agreement.owner.short}",
                        hint="each owner announces the agreements about its own types",
                    )
                if state.agreements.get(agreement.name) != statement.to_sexp():
                    agreements.append(Agree(agreement.name, statement.to_sexp()))
            case ProfileClaim() as claim:
                known = state.profiles.get(claim.of)
                if known is None or known.digest != statement.digest:
                    yield PublishProfiles((statement.unverified(),))
    yield from agreements


def _change_agreement(plan: AgreementPlan, options: ChangeOptions) -> CommandAnswer:
    def sign(desk: OwnerSigner) -> Sign:
        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            changes = list(plan(desk, author.state))
            # Many profiles do not fit into one event.
            return [author.change(now, *portion) for portion in packed(changes) if portion]

        return events

    return run_signing(sign, options)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock net retire`: stop waiting for a broker that is gone.


@option_class
class _Retire:
    brokers: tuple[str, ...] = argument(nargs=-1, required=True, metavar="BROKER...")
    change: ChangeOptions


@command(
    example="penstock net retire old --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key --wait"
)
def retire(options: _Retire) -> CommandAnswer:
    """Retire brokers: revoke the certificates that make them brokers, so that no change waits for them any more.

    With the coordinator's key, a broker loses its right `broker` on the network. With another owner's key, it loses its
    right to carry that owner's types. This cannot be undone: for the broker to return, issue a new certificate.

    Changes wait for a broker that uses time-stamps until its last stamp expires. A broker that does not use them can
    continue to deliver to its own clients if it still runs and is cut off: stop it first.
    """
    ids: list[str] = []

    def learn(desk: OwnerSigner, status: Mapping[str, Wire]) -> tuple[Warned, ...]:
        state = table(table(status.get("policy")).get(str(desk.principal)))
        known = table(state.get("brokers"))
        warnings: list[Warned] = []
        for word in options.brokers:
            entry = known.get(str(desk.names.principal(word)))
            found = [str(id_) for id_ in listed(table(entry).get("certificates"))]
            if entry is None or not found:
                raise _not_waited_for(word, known, desk)
            ids.extend(found)
            if table(entry).get("stamped") is not True:
                warnings.append(Warned("evolution.unstamped-broker", _GOES_ON.format(word)))
        return tuple(warnings)

    def sign(_desk: OwnerSigner) -> Sign:
        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            new = tuple(dict.fromkeys(id_ for id_ in ids if id_ not in author.state.revoked))
            return [author.change(now, Revoke(new))] if new else []

        return events

    return run_signing(sign, options.change, learn)


_GOES_ON: Final = (
    "{} does not use time-stamps: if it still runs and is cut off, it goes on delivering to its own clients; stop it"
)


def _not_waited_for(word: str, known: Iterable[str], desk: OwnerSigner) -> RefusedError:
    names = ", ".join(desk.names.show_text(broker) for broker in known) or "none"
    return RefusedError(
        "evolution.no-such-broker",
        f"none of your changes waits for `{word[:80]}`, or you cannot revoke the right that makes it a broker",
        hint=f"brokers that are waited for: {names}",
    )


# ----------------------------------------------------------------------------------------------------------------------
# `penstock net stamp`: sign time-stamps, which say how far an owner's policy is and for how long that is valid.


_STAMP: Final = Duration(STAMP_PERIOD / 1_000, above=0)
#: seconds until a retry, or the interval of stamps if that is shorter
_RETRY: Final = 1.0
#: seconds within which a stamp must be sent, at least and at most: others wait for the chain meanwhile
_ANSWER: Final = (1.0, 5.0)
#: temporary problems: another process holds the chain, its file is an old copy until the owner fetches the rest, or a
#: clock is being set
_PASSING: Final = frozenset(("evolution.busy", "evolution.old-chain", "evolution.backwards", "evolution.future"))


@option_class
class _Stamp:
    period: float = option(
        "--for", type=_STAMP, required=True, metavar="DURATION", help="Set how long it is valid, such as 30s."
    )
    every: float | None = option(
        "--every",
        type=_STAMP,
        metavar="DURATION",
        help="Keep signing at this interval, best a third of --for (default: sign once).",
    )
    signing: OwnerSigningOptions
    output: str = output_option()


@command(
    example="""
penstock net stamp --for 30s --every 10s --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key
"""
)
def stamp(options: _Stamp) -> None:
    """Sign a time-stamp, for which brokers may deliver your types; or keep signing until you stop it.

    A broker whose last stamp has expired delivers none of your types. With --every, the command reports problems and
    retries, even if the broker is gone for a while. Each stamp is a line of the log.
    """
    if options.every is not None and options.every >= options.period:
        raise MalformedError("cli.usage", "--every must be shorter than --for", hint="use about a third of it")
    stamper = _Stamper(options.signing.signer(), max(1, round(options.period * 1_000)), as_json=wants_data())

    async def conversation(stop: asyncio.Event) -> None:
        if options.every is None:
            async with stamper.desk.call.client() as client:
                await stamper.sign(client)
        else:
            await stamper.go_on(options.every, stop)

    talk(conversation)


@dataclass(frozen=True, slots=True)
class _Stamper:
    """Sign time-stamps and log them."""

    desk: OwnerSigner
    period: int
    as_json: bool

    async def go_on(self, every: float, stop: asyncio.Event) -> None:
        """Sign until the command is stopped. Raises the first problem, and problems that are not temporary."""
        begun = False
        while not stop.is_set():
            try:
                async with self.desk.call.client() as client:
                    while not stop.is_set():
                        await self._sign_soon(client, every)
                        begun = True
                        await _pause(every, stop)
            except PenstockError as error:
                if not begun or not (isinstance(error, FailedError) or error.code in _PASSING):
                    raise
                self._log({"code": error.code, "message": error.message}, f"not signed: {error}")
                await _pause(min(every, _RETRY), stop)

    async def _sign_soon(self, client: Client, every: float) -> None:
        least, most = _ANSWER
        try:
            async with asyncio.timeout(max(least, min(every, most))):
                await self.sign(client)
        except TimeoutError:
            raise FailedError("client.timeout", "the broker does not answer") from None

    async def sign(self, client: Client) -> None:
        """Sign one time-stamp, store it, and send it, after the events of the chain that the broker lacks."""
        async with holding(self.desk.file) as held:
            done = Signed()
            await catch_up(self.desk, client, held, done)
            warn(*done.warnings)
            signed = author_of(self.desk, held.chain, held.state.stamp).stamp(clock(), self.period)
            held.note(stamp=signed)
            await client.evolve(signed.to_bytes())
        value = signed.value
        facts = {"time": value_text(value.time), "until": value_text(value.until), "number": value.number}
        again = f", sent to the broker again: {', '.join(map(str, done.again))}" if done.again else ""
        self._log(
            {**facts, "again": done.again},
            f"{facts['time']} policy event {value.number} is the last one, good until {facts['until']}{again}",
        )

    def _log(self, data: dict[str, object], text: str) -> None:
        if self.as_json:
            click.echo(json.dumps(data))
        else:
            say(text)


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
