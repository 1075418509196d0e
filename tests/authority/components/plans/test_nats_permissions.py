"""Generated permissions on a real NATS server: a domain works under them, and the server refuses everything else."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import nats
import nkeys  # type: ignore[import-untyped]  # it ships no types
import pytest
from tests.authority.components.kit import TABLE, administration
from tests.authority.components.points.test_points import (
    ACCOUNTS,
    LOOK,
    STAFF,
    TRIO,
    WITHDRAW,
    Bank,
    question,
    role,
    run,
)

from penstock.authority.components.exchange.topics import ComponentKind, TopicLevels
from penstock.authority.components.exchange.topics_lists import TopicsList
from penstock.authority.components.plans.nats_permissions import (
    NatsPermissions,
    component_permissions,
    server_configuration,
)
from penstock.authority.decisions.messages import AnswerEffect
from penstock.fabric import SystemClock
from penstock.fabric.nats import NatsFabric
from penstock.fabric.nats_api import ApiError, ask, settle
from penstock.fabric.nats_login import NatsLogin
from penstock.fabric.nats_names import NatsNames
from penstock.testing.nats import NatsServer

LEVELS = TopicLevels(lifespan=8.0, lease=60.0)
NAMES = NatsNames()
EVERYTHING = TopicsList.of(
    {one for row in TABLE.values() for one in row.write}, {one for row in TABLE.values() for one in row.read}
)


def _permissions() -> list[NatsPermissions]:
    return [
        *component_permissions("bank", "pap1", ComponentKind.PAP, EVERYTHING, levels=LEVELS),
        *(
            user
            for name, of in TRIO
            for user in component_permissions(
                "bank", name, ComponentKind(TABLE[of].kind), TABLE[of].topics, role=of, levels=LEVELS
            )
        ),
    ]


class Users:
    """The users of the server, with their keys in files."""

    def __init__(self, folder: Path, permissions: list[NatsPermissions]) -> None:
        self._folder, self._inboxes = folder, {one.user: one.inbox for one in permissions}
        self.config, self.url = "\n".join(server_configuration("bank", permissions)), ""
        for name in self._inboxes:
            seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
            (folder / name).write_bytes(seed)
            public = nkeys.from_seed(bytearray(seed)).public_key.decode()
            self.config = self.config.replace(f"NKEY_OF_{name},", f"{public},")

    def login(self, name: str) -> NatsLogin:
        return NatsLogin((self.url,), nkey=str(self._folder / name), inbox=self._inboxes[name])

    @asynccontextmanager
    async def joining(self, name: str) -> AsyncIterator[NatsFabric]:
        """Connect as the user that joins."""
        async with await NatsFabric.connect(self.login(f"{name}_JOINING")) as fabric:
            yield fabric

    async def refused(self, name: str, publish: list[str], subscribe: list[str]) -> list[str]:
        """Return what the server refuses to the user of a component, of these."""
        complaints: list[str] = []

        async def hear(error: Exception) -> None:
            complaints.append(str(error).lower())

        client = await nats.connect(self.url, nkeys_seed=str(self._folder / name), error_cb=hear)
        try:
            for subject in publish:
                await client.publish(subject, b"{}")
            for subject in subscribe:
                await client.subscribe(subject)
            await settle(client, 10)
        finally:
            await client.close()
        return [
            subject
            for verb, subjects in (("publish", publish), ("subscription", subscribe))
            for subject in subjects
            if any(f'permissions violation for {verb} to "{subject}"'.lower() in one for one in complaints)
        ]


def _outside() -> Mapping[str, tuple[list[str], list[str]]]:
    """Return what each component must not publish and subscribe to."""
    create = f"{NAMES.api}.CONSUMER.CREATE"
    anybody = [
        *(f"{NAMES.prefix}.{kind}.bank-CONF_1" for kind in ("topics", "owners")),
        *(NAMES.subject("bank-CONF_1", key) for key in ("bank/pep1", "plans", "withdrawals")),
        *(NAMES.subject(f"bank-{topic}", "bank/pap1") for topic in ("RPEP_1", "APOL_1", "JOIN_1", "APEP_1", "QPEP_1")),
        *(f"{NAMES.api}.STREAM.{verb}.penstock-bank-CONF_1" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE")),
        *(f"{NAMES.api}.STREAM.MSG.{verb}.penstock-bank-CONF_1" for verb in ("GET", "DELETE")),
        f"{NAMES.api}.DIRECT.GET.penstock-bank-CONF_1",
        f"{NAMES.api}.STREAM.CREATE.any",
        f"{NAMES.api}.STREAM.LIST",
        f"{NAMES.api}.CONSUMER.NAMES.penstock-bank-CONF_1",
        f"{create}.penstock-bank-CONF_1",
        f"{create}.penstock-bank-CONF_1.c",
        f"{create}.penstock-bank-CONF_1.c.{NAMES.subject('bank-CONF_1')}",
        f"{create}.penstock-bank-CONF_1.c.{NAMES.subject('bank-CONF_1', 'bank/other')}",
        f"{create}.penstock-bank-JOIN_1.c",
        f"{create}.penstock_topics.c",
        f"{NAMES.api}.CONSUMER.DURABLE.CREATE.penstock-bank-CONF_1.c",
        "_INBOX.bank-pap1.x",
    ]
    # Who has joined has no right to JOIN and CONF any more, not even under its own key.
    joined = {
        name: [
            NAMES.subject("bank-JOIN_1", f"bank/{name}"),
            f"{create}.penstock-bank-CONF_1.c.{NAMES.subject('bank-CONF_1', f'bank/{name}')}",
        ]
        for name, _ in TRIO
    }
    everything = [">", "penstock.>", "penstock.t.bank-CONF_1.*", "penstock.i.bank-DREP_1.pep1.*", "_INBOX.>", "$JS.>"]
    replies = NAMES.stream("bank-DREP_1", named=True)
    return {
        "pep1_JOINING": (
            [
                *anybody,
                *(NAMES.subject(f"bank-{topic}", "bank/pep1") for topic in ("APEP_1", "QPEP_1")),
                NAMES.subject("bank-DREQ_1", "k", "pep1"),
                f"{create}.penstock-bank-RPEP_1.c",
            ],
            [*everything, "_INBOX.bank-pep1.>"],
        ),
        "pep1": (
            [
                *anybody,
                *joined["pep1"],
                NAMES.subject("bank-DREQ_1", "k", "pep2"),  # requests of another
                NAMES.subject("bank-DREP_1", "k", "pep1"),  # replies to itself
                NAMES.subject("bank-IREQ_1", "k", "pep1"),
                f"{create}.{replies}.c",  # replies to others
                f"{create}.{replies}.c.{NAMES.subject('bank-DREP_1', instance='pep2')}",
                f"{create}.{replies}.c.{NAMES.subject('bank-DREP_1', instance='*')}",
                f"{create}.{NAMES.stream('bank-DREQ_1', named=True)}.c",
                NAMES.alive("bank-QPDP_1"),
            ],
            [*everything, "_INBOX.bank-pdp1.>", NAMES.alive("bank-QPEP_1")],
        ),
        "pdp1": (
            [
                *anybody,
                *joined["pdp1"],
                NAMES.subject("bank-DREQ_1", "k", "pdp1"),
                NAMES.subject("bank-IREP_1", "k", "pdp1"),
            ],
            [*everything, "_INBOX.bank-pep1.>"],
        ),
        "pip1": (
            [*anybody, *joined["pip1"], NAMES.subject("bank-DREP_1", "k", "pep1"), f"{create}.{replies}.c"],
            [*everything, "_INBOX.bank-pep1.>"],
        ),
        "pap1": (
            [
                NAMES.subject("bank-DREP_1", "k", "pep1"),
                NAMES.subject("bank-DREQ_1", "k", "pep1"),
                NAMES.subject("other-CONF_1", "k"),
                f"{create}.{replies}.c",
                f"{NAMES.api}.STREAM.DELETE.penstock-bank-CONF_1",
            ],
            [*everything, "_INBOX.bank-pep1.>"],
        ),
    }


def test_a_domain_works_under_its_permissions_and_the_server_refuses_the_rest(tmp_path: Path) -> None:
    users = Users(tmp_path, _permissions())

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            fabrics = {
                name: await stack.enter_async_context(await NatsFabric.connect(users.login(name)))
                for name in ("pap1", *(name for name, _ in TRIO))
            }
            table = {**TABLE, "DR(1)": role("DR", policies=(WITHDRAW,))}
            made = Bank(stack, fabrics["pap1"], SystemClock(), administration(*TRIO, table=table, levels=LEVELS))
            await stack.enter_async_context(made.administration)
            made.fabric, made.joining = fabrics["pip1"], partial(users.joining, "pip1")
            await made.pip("pip1", STAFF, ACCOUNTS)
            made.fabric, made.joining = fabrics["pdp1"], partial(users.joining, "pdp1")
            await made.pdp()
            made.fabric, made.joining = fabrics["pep1"], partial(users.joining, "pep1")
            pep = await made.pep()
            assert (await pep.decide(question("withdraw"))).effect is AnswerEffect.PERMIT
            number = await made.administration.reconfigure({"DR(1)": role("DR", policies=(LOOK,))})
            await made.administration.base_time(number)
            assert (await pep.decide(question("withdraw"))).effect is AnswerEffect.NOT_APPLICABLE
            assert (await pep.decide(question("look"))).effect is AnswerEffect.PERMIT
            for name, (publish, subscribe) in _outside().items():
                assert await users.refused(name, publish, subscribe) == [*publish, *subscribe], name

            # The filter in the call's subject is allowed, but the call has another one, or none.
            client = await fabrics["pep1"].link.client()
            stream, own = NAMES.stream("bank-DREP_1", named=True), NAMES.subject("bank-DREP_1", instance="pep1")
            other = NAMES.subject("bank-DREP_1", instance="*")
            filters: Mapping[str, object]
            for filters in ({"filter_subject": other}, {"filter_subjects": [other]}, {}):
                body = {"stream_name": stream, "config": {"name": "c", "ack_policy": "none", **filters}}
                with pytest.raises(ApiError):
                    await ask(client, f"{NAMES.api}.CONSUMER.CREATE.{stream}.c.{own}", body, timeout=5)
            assert made.notes == []

    with NatsServer(config=users.config) as server:
        users.url = server.url
        run(scenario)
