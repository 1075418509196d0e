"""Roles and live subscriptions: what a role rests on ends, and the subscription is cut; other clients go on."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.broker.local.test_local_broker import PUBLISHING, given_to
from tests.broker.sports import AGENCY, CONNECT, NEWS, NOW, PDA, REPORTER, STRANGER, Node, grant

from penstock.broker.local.decisions import AuthoritySources
from penstock.guard.roles import ActiveRoles, RoleAuthority
from penstock.model.principals import Principal
from penstock.roles.engine import (
    AcceptCredential,
    ActivateRole,
    Appoint,
    DropCredential,
    EndSession,
    ForeignCredential,
    OpenSession,
    RelyOnRecord,
    RoleChange,
    RoleEngine,
    SetFact,
    WithdrawAppointment,
)
from penstock.roles.language import read_policy
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "roles" / "numberplate"
COURT = Principal(b"c" * 32)
DETECTIVE = str(PDA.principal)
#: the example's policy over the types of this network: a place is tracked instead of a numberplate
PRIVILEGE = "pito/uk.gov.pito.Numberplate(location, timestamp, numberplate = p)"
MET = (EXAMPLE / "met.roles").read_text().replace(PRIVILEGE, "self/SportsNews(headline, location = p)")


class Network:
    """A broker that uses the roles of the police, which rely on an order of the court."""

    def __init__(self) -> None:
        self.court = RoleEngine(read_policy((EXAMPLE / "court.roles").read_text()), COURT)
        self.met = RoleEngine(read_policy(MET), AGENCY.principal, {"court": COURT, "pito": AGENCY.principal})
        self.node = Node()
        for engine in (self.court, self.met):
            engine.advance(NOW)
        certificates = (
            *CONNECT,
            *PUBLISHING,
            grant(STRANGER, None, Right.CONNECT),
            grant(STRANGER, NEWS, Right.SUBSCRIBE),
        )
        roles = RoleAuthority(ActiveRoles(self.met), frozenset({AGENCY.principal}))
        sources = AuthoritySources(Credentials.of(*certificates), others=(roles,))
        self.node.run(self.node.broker.change(NOW, sources=sources))
        order = self.court.apply(
            Appoint("court_order", PDA.principal, COURT, ("C7", "Soho"), NOW + timedelta(hours=1))
        ).record
        assert order is not None
        self.order = order
        shown = ForeignCredential(
            COURT, order.id, order.kind, order.name, order.principal, order.arguments, order.until
        )
        self.court.apply(RelyOnRecord(order.id, AGENCY.principal))
        self.change(AcceptCredential(shown))
        self.change(SetFact("detective", True, (DETECTIVE,)))
        self.change(SetFact("case_assignment", True, (DETECTIVE, "C7")))
        self.change(OpenSession("desk", PDA.principal))
        self.change(ActivateRole("desk", "tracker", ("Soho",)))
        for who in (PDA, STRANGER, REPORTER):
            self.node.connect(who)
        self.node.run(self.node.broker.advertise(NOW, "reporter", NEWS.name.name, NEWS.name))
        for session in ("pda", "stranger"):
            self.node.run(self.node.broker.subscribe(NOW, session, "s", NEWS.name, ALWAYS))

    def change(self, change: RoleChange) -> None:
        """Change the roles of the police, and tell the broker whose privileges have changed."""
        outcome = self.met.apply(change)
        self.node.run(self.node.broker.reconsider(self.node.now, outcome.affected))

    def seen(self, place: str = "Soho") -> tuple[list[str], list[str]]:
        """Publish an event, and return who gets it."""
        said = self.node.publish(NEWS, id="e", headline="h", location=place)
        return given_to(said, "pda"), given_to(said, "stranger")


def test_the_detective_sees_what_the_order_names() -> None:
    network = Network()
    assert network.seen() == (["e"], ["e"])
    assert network.seen("Mayfair") == ([], ["e"])


@pytest.mark.parametrize(
    "change",
    [
        SetFact("detective", False, (DETECTIVE,)),
        SetFact("detective", None, (DETECTIVE,)),
        SetFact("case_assignment", False, (DETECTIVE, "C7")),
        EndSession("desk"),
    ],
)
def test_withdrawing_a_condition_cuts_the_subscription(change: RoleChange) -> None:
    network = Network()
    network.change(change)
    assert network.seen() == ([], ["e"])
    network.change(SetFact("detective", True, (DETECTIVE,)))
    network.change(SetFact("case_assignment", True, (DETECTIVE, "C7")))
    assert network.seen() == ([], ["e"])
    if network.met.session("desk") is None:
        network.change(OpenSession("desk", PDA.principal))
    network.change(ActivateRole("desk", "tracker", ("Soho",)))
    assert network.seen() == (["e"], ["e"])


def test_the_court_withdraws_its_order() -> None:
    network = Network()
    outcome = network.court.apply(WithdrawAppointment(network.order.id, COURT))
    assert outcome.notices == ((AGENCY.principal, network.order.id),)
    for _, record in outcome.notices:
        network.change(DropCredential(COURT, record))
    assert network.seen() == ([], ["e"])


def test_the_order_ends_without_anybody_doing_anything() -> None:
    network = Network()
    network.node.now = NOW + timedelta(hours=1)
    assert network.seen() == (["e"], ["e"])
    # The broker knows the end from the branch, even if the engine is not asked.
    network.node.now += timedelta(seconds=1)
    assert network.seen() == ([], ["e"])


def test_only_those_concerned_are_worked_out_again() -> None:
    network = Network()
    network.node.reports.clear()
    network.change(SetFact("detective", False, (DETECTIVE,)))
    assert {report.session for report in network.node.reports} == {"pda"}
