"""Key groups under anything: joins, leaves, evictions, lost and repeated messages, replicas, restarts.

What happened is replayed from the log at the end. Then, for each epoch: a coalition of all brokers that had no right to
its key, with all that they ever held and all that was ever told, does not have it. Not by luck: what they can find is a
set of secrets, closed under everything that a message makes possible.
"""

from collections import defaultdict
from datetime import datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.broker.key_kit import GROUP, MANAGER, REPLICA, World, carry_out, catch_up, manager, right
from tests.budget import examples
from tests.crypto.test_key_tree import closure
from tests.trust.kit import DAY, who

from penstock.broker.keys.group import GroupState
from penstock.broker.keys.log import read_record
from penstock.broker.limits import BrokerLimits
from penstock.crypto.key_tree import Rekey, epoch_key
from penstock.crypto.wrapping import Secret
from penstock.model.principals import Principal
from penstock.trust.validity import Validity

NUMBERS = range(20, 29)
numbers = st.sampled_from(NUMBERS)


class Replay:
    """What the log says: who held the key of which epoch, what each broker was given, and what gives what."""

    def __init__(self, world: World) -> None:
        self.gives = defaultdict[Secret, list[Secret]](list)
        self.given = defaultdict[Principal, set[Secret]](set)
        self.entitled = defaultdict[int, set[Principal]](set)
        self.keys: dict[int, Secret] = {}
        one = manager()
        for record in world.log.ever:
            rekey = one._fold.take(read_record(record).verify()).rekey
            state = one._state(GROUP)
            if rekey is not None:
                self._heard(state, rekey)
            self.entitled[state.epoch] |= state.holders().keys()
            for broker, holder in state.members.items():
                self.given[broker] |= {holder.leaf, state.tree.key()}
                if holder.handle in state.tree:
                    self.given[broker] |= {*state.tree.path(holder.handle)._above.values()}

    def _heard(self, state: GroupState, rekey: Rekey) -> None:
        tree = state.tree
        for step in rekey.renewed:
            below = [child for child, _ in step.boxes] + ([step.heir] if step.heir else [])
            for child in below:
                self.gives[tree._secret(child)].append(tree._secret(step.node))
        self.keys[state.epoch] = tree.key()
        self.gives[tree._root].append(epoch_key(tree._root, GROUP.id, state.epoch))

    def check(self) -> None:
        for epoch, key in self.keys.items():
            outside: set[Secret] = set()
            for broker, secrets in self.given.items():
                if broker not in self.entitled[epoch]:
                    outside |= secrets
            assert key not in closure(outside, self.gives), f"epoch {epoch}"
            assert all(key in closure({*self.given[broker]}, self.gives) for broker in self.entitled[epoch])


class KeyGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(limits=BrokerLimits(key_nodes=2, key_checkpoint_bytes=900))

    @rule(number=numbers, since=st.sampled_from([-9000, -5, 0]), lasts=st.sampled_from([100, 5000, None]))
    def join(self, number: int, since: int, lasts: int | None) -> None:
        now = self.world.now
        validity = Validity.between(now + timedelta(seconds=since), self._end(now, lasts))
        self.world.join(number, right(number, validity=validity))

    @staticmethod
    def _end(now: datetime, lasts: int | None) -> datetime:
        return now + (900 * DAY if lasts is None else timedelta(seconds=lasts))

    @precondition(lambda self: self.world.members() - self.world.gone)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.world.leave(data.draw(st.sampled_from(sorted(self.world.members() - self.world.gone))))

    @rule(gone=st.sets(numbers, min_size=1, max_size=3))
    def evict(self, gone: set[int]) -> None:
        outputs = []
        for number in gone:
            outputs += self.world.manager.evict(self.world.now, GROUP, who(number))
        self.world.run(outputs)

    @rule(seconds=st.sampled_from([1, 40, 601]))
    def pass_time(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @rule(deaf=st.sets(numbers, max_size=4))
    def lose(self, deaf: set[int]) -> None:
        self.world.deaf = deaf

    @precondition(lambda self: self.world.told)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        tell = data.draw(st.sampled_from(self.world.told[-8:]))
        for broker in self.world.brokers.values():
            broker.take(broker.member.receive(self.world.now, tell.value.unverified()))

    @rule(number=st.sampled_from([MANAGER, REPLICA]))
    def restart(self, number: int) -> None:
        self.world.restart(number)

    @rule()
    def begin_the_log_anew(self) -> None:
        self.world.run(self.world.manager.condense(self.world.now))
        assert self.world.log.first or not self.world.epoch

    @rule()
    def another_replica_is_faster(self) -> None:
        world = self.world
        other = manager(REPLICA, limits=world.limits, seed=world.log_length)
        catch_up(world.now, other, world.log)
        if world.epoch:
            mine = world.manager.rotate(world.now, GROUP)
            # It dies before anybody hears of it.
            carry_out(world.now, other, world.log, other.rotate(world.now, GROUP))
            world.run(mine)

    @invariant()
    def who_knows_the_epoch_knows_its_key(self) -> None:
        if not self.world.epoch:
            return
        key = self.world.key()
        for broker in self.world.brokers.values():
            assert broker.had.get(self.world.epoch, key) == key

    def teardown(self) -> None:
        world = self.world
        # Nothing is lost for good: when all hear again, all have the key.
        world.deaf = set()
        for _ in range(3):
            world.pass_time(31)
        for number in world.members() - world.gone:
            assert world.brokers[number].keys[world.epoch] == world.key()
        replay = Replay(world)
        replay.check()
        for broker in world.brokers.values():
            for epoch, key in broker.had.items():
                assert replay.keys[epoch] == key
                assert who(broker.number) in replay.entitled[epoch]


TestKeyGroups = KeyGroups.TestCase
TestKeyGroups.settings = settings(max_examples=examples(50), stateful_step_count=20, deadline=None)
