"""`penstock net agree`, `end-agreement`, `forget`: an owner announces what was agreed on about its types."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import click

from penstock.apps.cli.files import read_bytes, within
from penstock.apps.cli.groups import example
from penstock.apps.cli.net_policy import change_options, run_signing
from penstock.apps.cli.net_policy_chain import Event
from penstock.apps.cli.net_policy_options import Desk
from penstock.apps.cli.net_policy_signing import Sign
from penstock.errors import RefusedError
from penstock.guard import Agreement
from penstock.trust.policy_events import Agree, Change, Describe, EndAgreement, Forget
from penstock.trust.policy_state import PolicyAuthor, PolicyState, packed
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue
from penstock.trust.statements import read_statements

Plan = Callable[[Desk, PolicyState], Iterable[Change]]
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
    _change(lambda desk, state: _announcements(statements, desk, state), **rest)


@click.command("end-agreement")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@change_options
@example("penstock net end-agreement plant --broker penstock://127.0.0.1:7600 --network plant/Floor --key plant.key")
def end_agreement(*, names: tuple[str, ...], **rest: Any) -> None:
    """End agreements: who may publish and subscribe is what certificates say again."""

    def ended(_desk: Desk, state: PolicyState) -> Iterator[Change]:
        for name in names:
            if name not in state.agreements:
                known = ", ".join(state.agreements) or "none"
                raise RefusedError(
                    "evolution.no-agreement",
                    f"you have announced no agreement `{name[:80]}`",
                    hint=f"there are: {known}",
                )
            yield EndAgreement(name)

    _change(ended, **rest)


@click.command()
@click.argument("principals", nargs=-1, required=True, metavar="WHO...")
@change_options
@example("penstock net forget ada --broker penstock://127.0.0.1:7600 --network plant/Floor --key plant.key")
def forget(*, principals: tuple[str, ...], **rest: Any) -> None:
    """Forget what you have said about somebody: who has no profile may have nothing that was agreed on."""

    def forgotten(desk: Desk, state: PolicyState) -> Iterator[Change]:
        known = [who for who in map(desk.names.principal, principals) if who in state.profiles]
        if known:
            yield Forget(tuple(dict.fromkeys(known)))

    _change(forgotten, **rest)


def _load(file: str) -> list[SignedValue[Agreement] | SignedValue[ProfileClaim]]:
    data = read_bytes(file)
    with within(file):
        return [statement.verify() for statement in read_statements(data, Agreement, ProfileClaim)]  # type: ignore[misc]  # of either kind


def _announcements(
    statements: Iterable[SignedValue[Agreement] | SignedValue[ProfileClaim]], desk: Desk, state: PolicyState
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
                    yield Describe((statement.unverified(),))
    yield from agreements


def _change(plan: Plan, **rest: Any) -> None:
    def sign(desk: Desk) -> Sign:
        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            changes = list(plan(desk, author.state))
            # Many profiles do not fit into one event.
            return [author.change(now, *portion) for portion in packed(changes) if portion]

        return events

    run_signing(sign, **rest)
