"""The words of a refusal for lack of rights, and how they travel."""

from datetime import UTC, datetime

import pytest

from penstock.errors import MalformedError
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, event_tag, network_tag, owner_of_tag
from penstock.trust.certificates import Authorisation, NameCertificate
from penstock.trust.refusals import (
    LackedRight,
    Resource,
    RevokedCertificate,
    action_text,
    read_revoked,
    revoked_rows,
)
from penstock.trust.tags import ANY

OWNER, READER = Principal(b"\x01" * 32), Principal(b"\x02" * 32)
TYPE = TypeName(OWNER, "demo.Reading", "2")
NETWORK = NetworkName(OWNER, "the network")
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("about", [TYPE, TYPE.key, NETWORK])
def test_a_right_is_read_as_it_was_written(about: Resource) -> None:
    lacked = LackedRight(READER, Right.CONNECT if about is NETWORK else Right.SUBSCRIBE, about)
    assert LackedRight.from_row(READER, lacked.to_row()) == lacked


@pytest.mark.parametrize("row", [None, [], ["fly", str(TYPE)], ["subscribe", "moon"], ["subscribe", 1]])
def test_what_cannot_be_read_is_nothing(row: object) -> None:
    assert LackedRight.from_row(READER, row) is None


def test_every_right_has_words() -> None:
    assert len({action_text(right, "it") for right in Right}) == len(Right)


def test_a_refusal_says_who_what_and_what_to_do() -> None:
    error = LackedRight(READER, Right.SUBSCRIBE, TYPE).refuse("broker.not-permitted")
    assert error.message == f"{READER.short} may not subscribe to {OWNER.short}/demo.Reading@2"
    assert f"`penstock explain --principal {READER} --right subscribe --type {TYPE}`" in error.hint


def test_a_command_can_be_pasted() -> None:
    lacked = LackedRight(READER, Right.CONNECT, NETWORK)
    assert lacked.command("--key a.key").endswith(f"--right connect --network '{NETWORK}'")
    assert lacked.command("", lambda _: "acme") == "penstock explain --right connect --network 'acme/the network'"


def test_a_hint_says_what_is_revoked() -> None:
    revoked = RevokedCertificate("cert:abcdefghijklmnopqrstuvwxyz", OWNER, AT)
    hint = LackedRight(READER, Right.SUBSCRIBE, TYPE).hint("penstock explain", (revoked,))
    assert hint.startswith(f"certificate cert:abcdefghijkl… was revoked at 2026-05-01 12:00:00 UTC by {OWNER.short}; ")


def test_revocations_are_read_as_they_were_written() -> None:
    revoked = (RevokedCertificate("cert:a", OWNER, AT), RevokedCertificate("cert:b", READER))
    assert read_revoked(revoked_rows(revoked)) == revoked
    assert read_revoked(None) == ()
    with pytest.raises(MalformedError):
        read_revoked([["cert:a"]])


def test_certificates_that_a_right_depends_on() -> None:
    lacked = LackedRight(READER, Right.CONNECT, NETWORK)
    connecting, reading = network_tag(OWNER, None, [Right.CONNECT]), event_tag(OWNER, "demo.Reading")
    assert lacked.depends_on(Authorisation(OWNER, READER, connecting))
    assert not lacked.depends_on(Authorisation(OWNER, READER, reading))
    assert LackedRight(READER, Right.SUBSCRIBE, TYPE).depends_on(Authorisation(OWNER, READER, reading))
    assert lacked.depends_on(NameCertificate(OWNER, b"readers", READER))


def test_the_owner_of_a_right() -> None:
    assert owner_of_tag(event_tag(OWNER, "demo.Reading")) == OWNER
    assert owner_of_tag(network_tag(OWNER)) == OWNER
    assert owner_of_tag(event_tag(None, "demo.Reading")) is None
    assert owner_of_tag(ANY) is None
