"""Policy events reach live subscriptions: wider, narrower, and whatever clients bring along."""

from dataclasses import dataclass, field

from tests.broker.sports import AGENCY, CONNECT, NEWS, NOW, PDA, REPORTER, STRANGER, TENNIS, Node, grant

from penstock.broker.evolution.policy_keeper import Acknowledge, Changed, PolicyKeeper
from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.local.decisions import AuthoritySources
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Change, Revoke
from penstock.trust.policy_state import PolicyAuthor, publish

PUBLISHING = grant(REPORTER, TENNIS, Right.PUBLISH)
READING = grant(PDA, TENNIS, Right.SUBSCRIBE)


@dataclass
class Live:
    """The sports news service, whose policy comes as policy events alone."""

    node: Node = field(default_factory=Node)
    policy: PolicyAuthor = field(default_factory=lambda: PolicyAuthor(AGENCY))
    keeper: PolicyKeeper = field(
        default_factory=lambda: PolicyKeeper(STRANGER, lambda *_: False, limits=BrokerLimits())
    )
    acknowledged: int = 0

    def change(self, *changes: Change) -> None:
        """Change the policy, and do with it what a broker does."""
        for output in self.keeper.receive(NOW, self.policy.change(NOW, *changes).unverified()):
            if isinstance(output, Changed):
                sources = AuthoritySources(self.keeper.credentials(), revocations=self.keeper.revocations())
                self.node.run(self.node.broker.change(NOW, sources=sources))
                for said in self.keeper.enforced(NOW, output.owner, output.number):
                    if isinstance(said, Acknowledge):
                        self.acknowledged = said.acknowledgement.value.number

    def start(self, *brought: Certificate) -> None:
        """Let a reporter advertise tennis, and a reader, who brings something along, subscribe to all sports news."""
        self.node.connect(REPORTER)
        self.node.run(self.node.broker.advertise(NOW, "reporter", TENNIS.name.name, TENNIS.name))
        self.node.run(self.node.broker.connect(NOW, "pda", PDA.principal, Credentials.of(*brought)))
        self.node.run(self.node.broker.subscribe(NOW, "pda", "news", NEWS.name))

    def arrives(self) -> bool:
        """Publish something, and say whether the reader got it."""
        said = self.node.publish(TENNIS, headline="Match point", sets=3)
        return any(isinstance(output, requests.Given) for output in said)


def test_a_right_is_given_and_taken_while_events_flow() -> None:
    live = Live()
    live.change(publish(*CONNECT, PUBLISHING, READING))
    live.start()
    assert live.arrives()
    live.change(Revoke((READING.id,)))
    assert live.acknowledged == 2
    assert not live.arrives()
    again = grant(PDA, NEWS, Right.SUBSCRIBE), grant(PDA, TENNIS, Right.SUBSCRIBE, Right.RESTRICTIONS)
    live.change(publish(*again))
    # The request that was made at the beginning holds, and reaches further than it did.
    assert live.arrives()


def test_what_a_client_brings_along_is_revoked_too() -> None:
    live = Live()
    live.change(publish(*CONNECT, PUBLISHING))
    live.start(READING)
    assert live.arrives()
    live.change(Revoke((READING.id,)))
    assert not live.arrives()
    # Nor does it help to show it again.
    live.node.run(live.node.broker.disclose(NOW, "pda", Credentials.of(READING)))
    assert not live.arrives()


def test_whoever_may_not_connect_any_more_is_put_out() -> None:
    live = Live()
    live.change(publish(*CONNECT, PUBLISHING))
    live.start(READING, CONNECT[0])
    live.change(Revoke((CONNECT[0].id,)))
    assert any(isinstance(output, requests.Closed) for output in live.node.told)
    assert not live.arrives()
