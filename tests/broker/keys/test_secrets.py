"""No key is shown: not by what prints itself, not in logs, not in a report of all variables where something fails."""

import asyncio
import faulthandler
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.broker.key_kit import GROUP, KEK, REPLICA, World, manager, right
from tests.broker.key_kit import grounds as grounds_of
from tests.broker.keys.test_node_keys import POLICY, SEALED, holds
from tests.broker.node_kit import Broker, client_of, run, running, until
from tests.broker.sports import AGENCY, NEWS, signed
from tests.trust.kit import NOW, key, who

from penstock.broker.keys.log import Archive, read_record
from penstock.broker.keys.node_keys import Managing
from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.protocol import KeyWord
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError, PenstockError
from penstock.store.files.key_files import KeyFolder
from penstock.trust.key_statements import KeyRequest, KeyWish
from penstock.trust.signed import sign_value


def secrets_of(world: World) -> list[Secret]:
    """Return every secret of a group: leaves, nodes, epochs, and what they lie under."""
    state = world.manager._state(GROUP)
    leaves = [holder.leaf for holder in state.holders().values()]
    return [KEK, *leaves, *state.tree._inner.values(), world.key(), *world.brokers[20].had.values()]


def shown(secret: Secret) -> Iterator[str]:
    octets = secret.expose()
    yield repr(octets)[2:-1]
    yield octets.hex()


def report(error: BaseException) -> str:
    """Return what a tool writes that shows all variables of all frames."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def failures(world: World) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield ways in which something about keys fails."""
    one = world.manager
    record = read_record(world.log.records[-1])
    other = manager(REPLICA, limits=world.limits)
    other._fold._kek = Secret(bytes(32))

    def request(wish: KeyWish, broker: int, public: bytes = b"") -> object:
        value = KeyRequest(wish, who(broker), GROUP, world.now, 1, 9, public)
        unverified = sign_value(value, key(broker)).unverified()
        rights = grounds_of(broker, right(broker), now=world.now)
        match wish:
            case KeyWish.JOIN:
                return one.join(world.now, unverified, rights)
            case KeyWish.HISTORY:
                return one.history(world.now, unverified, rights)
            case _:
                return one.path(world.now, unverified)

    yield "keys.weak-key", lambda: request(KeyWish.JOIN, 30, bytes(32))
    yield "keys.not-entitled", lambda: request(KeyWish.HISTORY, 31, key(31).public.raw)
    yield "keys.not-member", lambda: request(KeyWish.PATH, 32)
    yield "keys.log", lambda: one.take(NOW, record)
    yield "keys.unopened", lambda: other.take(NOW, read_record(world.log.ever[0]))
    yield "keys.checkpoint", lambda: one.condense(world.now)
    yield "keys.unopened", lambda: Archive(Secret(bytes(32)), bytes).read((b"archive", b"x"))


def test_a_report_with_all_variables_shows_no_key() -> None:
    world = World(20, 21, 22, limits=BrokerLimits(key_checkpoint_bytes=64, key_checkpoint_parts=1))
    world.pass_time(601)
    secret = secrets_of(world)
    for code, fail in failures(world):
        with pytest.raises(PenstockError) as caught:
            fail()
        assert caught.value.code == code
        text = report(caught.value)
        assert "self = " in text
        assert not [form for one in secret for form in shown(one) if form in text], code


def test_what_prints_itself_shows_no_key(tmp_path: Path) -> None:
    world = World(20, 21)
    state = world.manager._state(GROUP)
    things: list[object] = [state.members, state, world.manager, world.brokers[20].member, world.log.records and KEK]
    things += [Managing(KeyFolder(tmp_path), KEK), world.told, world.replies, state.tree]
    text = " ".join(repr(thing) for thing in things)
    assert not [form for one in secrets_of(world) for form in shown(one) if form in text]


class Full(KeyFolder):
    """A log on a disk that is full, from some record on."""

    async def append(self, number: int, record: bytes) -> bool:
        if number >= 4:
            raise FailedError("keys.log-folder", "the disk is full")
        return await super().append(number, record)


def test_a_node_whose_log_fails_tells_so_and_shows_no_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kek = Secret(bytes(range(100, 132)))

    def secrets_in(node: Broker) -> list[Secret]:
        return [kek, *(one for _, _, one in node.core.ring.items())]

    async def test() -> None:
        asyncio.get_running_loop().set_debug(True)
        managing = Managing(Full(tmp_path / "keys"), kek)
        async with running(*POLICY, types=(signed(SEALED),), managing=managing) as node:
            await until(lambda: holds(node) == 4)
            async with client_of(node, AGENCY) as owner:
                asking = asyncio.create_task(owner.keys(KeyWord.ROTATE, NEWS.name.key))
                await until(lambda: "keys.log-folder" in node.codes)
                asking.cancel()
            dump = (tmp_path / "dump").open("w+")
            faulthandler.dump_traceback(dump, all_threads=True)
            dump.seek(0)
            told = [report(one) if isinstance(one, BaseException) else repr(one) for one in node.told]
            text = " ".join([*told, repr(node), repr(node.settings), repr(managing), dump.read(), caplog.text])
            dump.close()
            assert "the disk is full" in text
            assert not [form for one in secrets_in(node) for form in shown(one) if form in text]

    with caplog.at_level(logging.DEBUG):
        run(test())
