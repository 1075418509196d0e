"""Which brokers a policy event waits for, at nodes that run: the brokers that have the right now, and nobody else."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.broker.node_kit import BROKERS, ROUTES, Broker, client_of, refused, run, running, settings, until
from tests.broker.sports import AGENCY, CONNECT, NEWS, NUMBER, PDA, REPORTER, STRANGER, definition, grant, signed

from penstock.broker.evolution.completeness import BrokerProgress
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.store.files.policy_files import PolicyFolder
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Acknowledgement, Install, Remove, Revoke
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.signed import sign_value
from penstock.trust.validity import Validity

READ, WRITE = grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH)
OWNER, HERE, THERE = AGENCY.principal, BROKERS[0].principal, BROKERS[1].principal
#: what makes the second broker one
BROKER = grant(BROKERS[1], None, *BROKER_RIGHTS)
#: what the first broker uses: all of the kit, but not what the second shows for itself
KNOWN = Credentials.of(*CONNECT, grant(BROKERS[0], None, *BROKER_RIGHTS), *ROUTES, READ, WRITE)


def now() -> datetime:
    return datetime.now(UTC)


def waited(node: Broker, number: int) -> dict[Principal, BrokerProgress]:
    """Return which brokers a policy event of the agency waits for, and how far each is; none if it has not come yet."""
    try:
        found = node.policies.completion(OWNER, number).brokers
    except RefusedError:
        return {}
    return {one.broker: one.progress for one in found}


def acknowledgement(key: SigningKey, number: int = 0, head: bytes = bytes(32)) -> Acknowledgement:
    return Acknowledgement(key.principal, OWNER, number, head, now())


def test_acknowledgements_of_those_who_are_not_brokers_take_no_space() -> None:
    async def main() -> None:
        # One may carry the owner's types as a client, the others are random keys.
        strangers = [STRANGER, *(SigningKey(bytes([number]) * 32) for number in range(90, 120))]
        rights = grant(STRANGER, None, Right.CONNECT), grant(STRANGER, NEWS, Right.ROUTE)
        async with running(*rights) as one, client_of(one, REPORTER) as writer:
            await writer.evolve(PolicyAuthor(AGENCY).change(now(), publish(READ)).to_bytes())
            for key in strangers:
                one.policies.take_acknowledgement(now(), sign_value(acknowledgement(key), key))
            assert waited(one, 1) == {HERE: BrokerProgress.ACKNOWLEDGED}
            assert {said.value.broker for said in one.policies.acknowledgements(OWNER)} == {HERE}
            assert not len(one.core.roster)

    run(main())


def test_a_broker_that_left_is_waited_for_until_its_right_is_revoked() -> None:
    author = PolicyAuthor(AGENCY)

    async def main() -> None:
        async with running(credentials=KNOWN) as one, client_of(one, REPORTER) as writer:
            async with running(credentials=KNOWN + Credentials.of(BROKER), key=BROKERS[1], peers=(one.address,)):
                await until(lambda: one.core.roster.trusted(OWNER) == {THERE})
            await until(one.sees)
            one.policies.tick()
            await writer.evolve(author.change(now(), Revoke((READ.id,))).to_bytes())
            # It may go on where nobody sees it, also though it has acknowledged nothing.
            assert waited(one, 1) == {HERE: BrokerProgress.ACKNOWLEDGED, THERE: BrokerProgress.WAITING}
            state = one.policies.status()[str(OWNER)]
            assert isinstance(state, dict)
            brokers = state["brokers"]
            assert isinstance(brokers, dict)
            told = brokers[str(THERE)]
            assert isinstance(told, dict)
            assert told["away"] is not None
            assert told["certificates"] == [BROKER.id]
            assert (told["stamped"], told["rights end"]) == (False, None)
            await writer.evolve(author.change(now(), Revoke((BROKER.id,))).to_bytes())
            for number in (1, 2):
                assert waited(one, number) == {HERE: BrokerProgress.ACKNOWLEDGED}
                assert one.policies.completion(OWNER, number).complete
            one.policies.tick()
            assert not len(one.core.roster)

    run(main())


def test_a_broker_that_starts_again_waits_for_those_that_it_has_seen(tmp_path: Path) -> None:
    author, keep = PolicyAuthor(AGENCY), PolicyFolder(tmp_path)

    async def main() -> None:
        async with running(credentials=KNOWN, keep=keep) as one, client_of(one, REPORTER) as writer:
            await writer.evolve(author.change(now(), publish(READ)).to_bytes())
            await writer.evolve(author.stamp(now(), 3_600_000).to_bytes())
            async with running(credentials=KNOWN + Credentials.of(BROKER), key=BROKERS[1], peers=(one.address,)):
                await until(lambda: one.policies._completeness(OWNER).goes_by_stamps(THERE))
                one.policies.tick()
        async with running(credentials=KNOWN, keep=keep) as again, client_of(again, REPORTER) as writer:
            await writer.evolve(author.change(now(), Revoke((READ.id,))).to_bytes())
            assert waited(again, 2)[THERE] is BrokerProgress.WAITING
            assert again.policies._completeness(OWNER).goes_by_stamps(THERE)
            await writer.evolve(author.change(now(), Revoke((BROKER.id,))).to_bytes())
        # What cannot be read is not taken for nothing.
        (tmp_path / "brokers.seen").write_bytes(b"(12:brokers-seen(4:seen)(4:sa")
        with pytest.raises(MalformedError):
            await Broker(settings(credentials=KNOWN), keep=keep).start()

    run(main())


def test_a_broker_that_goes_by_stamps_is_waited_for_until_it_has_stopped() -> None:
    author = PolicyAuthor(AGENCY)

    async def main() -> None:
        async with (
            running(credentials=KNOWN) as one,
            running(credentials=KNOWN + Credentials.of(BROKER), key=BROKERS[1], peers=(one.address,)) as other,
            client_of(one, REPORTER) as writer,
        ):
            await until(lambda: one.core.roster.trusted(OWNER) == {THERE})
            await writer.evolve(author.change(now(), publish(READ)).to_bytes())
            await writer.evolve(author.stamp(now(), 3_600_000).to_bytes())
            await until(lambda: one.policies._completeness(OWNER).goes_by_stamps(THERE))
            await other.stop()
            ordered = now()
            await writer.evolve(author.change(ordered, Revoke((BROKER.id,))).to_bytes())
            (standing,) = [found for found in one.policies.completion(OWNER, 2).brokers if found.broker == THERE]
            assert standing.progress is BrokerProgress.WAITING
            assert standing.at is not None
            assert standing.at >= ordered + timedelta(hours=1)
            # Afterwards it has stopped, and is not spoken of.
            assert not one.policies._stopping(standing.at + timedelta(seconds=1), OWNER)

    run(main())


def state_of(node: Broker) -> object:
    """Return how a node stands with the owner's policy."""
    state = node.policies.status()[str(OWNER)]
    return state["state"] if isinstance(state, dict) else None


def test_a_broker_that_learns_that_it_is_one_no_longer_delivers_nothing() -> None:
    author = PolicyAuthor(AGENCY)

    async def main() -> None:
        async with (
            running(credentials=KNOWN) as one,
            running(credentials=KNOWN + Credentials.of(BROKER), key=BROKERS[1], peers=(one.address,)) as other,
            client_of(one, REPORTER) as writer,
            client_of(other, REPORTER, broker=THERE) as local,
        ):
            await until(lambda: one.core.roster.trusted(OWNER) == {THERE} and state_of(other) == "fresh")
            feed = await local.advertise(NEWS.name)
            await feed.publish(headline="before")
            await writer.evolve(author.change(now(), Revoke((BROKER.id,))).to_bytes())
            await until(lambda: "node.not-broker" in other.codes)
            await refused("broker.policy-stale", feed.publish(headline="after"))
            assert state_of(other) == "not-broker"
            # With a new certificate it goes on.
            again = grant(BROKERS[1], None, *BROKER_RIGHTS, valid=Validity.between(None, now() + timedelta(days=1)))
            other.reload(replace(other.settings, credentials=KNOWN + Credentials.of(again)))
            await feed.publish(headline="again")

    run(main())


@pytest.mark.parametrize("parent_comes", [True, False])
def test_an_event_is_not_acknowledged_while_a_type_of_it_is_not_installed(*, parent_comes: bool) -> None:
    parent = definition("Parent", {"number": NUMBER})
    child = definition("Child", {"more": NUMBER}, parent.name)
    author = PolicyAuthor(AGENCY)

    async def main() -> None:
        async with running() as one, client_of(one, REPORTER) as writer:
            await writer.evolve(author.change(now(), Install(signed(child)), publish(READ)).to_bytes())
            assert waited(one, 1) == {HERE: BrokerProgress.WAITING}
            state = one.policies.status()[str(OWNER)]
            assert isinstance(state, dict)
            problems = state["not installed"]
            assert isinstance(problems, dict)
            assert list(problems) == ["Child@0"]
            assert "type." in str(problems["Child@0"])
            # All else is enforced: a type that is missing keeps nothing from being revoked.
            assert state["state"] == "fresh"
            assert len(one.core.sources.credentials) > len(one.settings.credentials)
            await writer.evolve(author.change(now(), Revoke((READ.id,))).to_bytes())
            assert waited(one, 2) == {HERE: BrokerProgress.WAITING}
            one.policies.tick()
            assert waited(one, 2) == {HERE: BrokerProgress.WAITING}
            change = Install(signed(parent)) if parent_comes else Remove(child.name)
            await writer.evolve(author.change(now(), change).to_bytes())
            one.policies.tick()
            assert waited(one, 3) == {HERE: BrokerProgress.ACKNOWLEDGED}
            assert "not installed" not in str(one.policies.status()).replace("'not installed': {}", "")

    run(main())
