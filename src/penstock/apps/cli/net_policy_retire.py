"""`penstock net retire`: a broker that is gone is not waited for any more."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import click

from penstock.apps.cli.groups import example
from penstock.apps.cli.net_policy import change_options, run_signing
from penstock.apps.cli.net_policy_chain import Event
from penstock.apps.cli.net_policy_options import Desk
from penstock.apps.cli.net_policy_signing import Sign
from penstock.apps.cli.session import Warned
from penstock.apps.cli.told import listed, table
from penstock.codec.wire import Wire
from penstock.errors import RefusedError
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor


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

    def learn(desk: Desk, status: Mapping[str, Wire]) -> tuple[Warned, ...]:
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

    def sign(_desk: Desk) -> Sign:
        def events(author: PolicyAuthor, now: datetime) -> list[Event]:
            new = tuple(dict.fromkeys(id_ for id_ in ids if id_ not in author.state.revoked))
            return [author.change(now, Revoke(new))] if new else []

        return events

    run_signing(sign, learn=learn, **rest)


_GOES_ON: Final = (
    "{} does not go by time-stamps: if it still runs and is cut off, it goes on delivering to its own clients; stop it"
)


def _not_waited_for(word: str, known: Iterable[str], desk: Desk) -> RefusedError:
    names = ", ".join(desk.names.show_text(broker) for broker in known) or "none"
    return RefusedError(
        "evolution.no-such-broker",
        f"no change of yours waits for `{word[:80]}`, or nothing that you can revoke makes it a broker",
        hint=f"brokers that are waited for: {names}",
    )
