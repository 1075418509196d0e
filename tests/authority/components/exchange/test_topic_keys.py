"""Samples are sealed: only components whose topics-lists have a topic read it, and keys change when roles end."""

from itertools import count
from typing import Any, Final

import msgspec
import pytest
from tests.authority.components.kit import SECOND_PAP_KEY, TABLE, key_of
from tests.authority.components.points.test_component import NAMES, OTHER_PDP, REQUEST, World, world

from penstock.authority.components.exchange.samples import (
    PolicyApplied,
    PolicyText,
    RequiredNames,
    SpecifiedPolicy,
)
from penstock.authority.components.exchange.topic_keys import (
    DerivedTopicKeys,
    HeldTopicKeys,
    PrivateConfiguration,
    is_sealed,
    open_private,
    seal_private,
)
from penstock.authority.components.exchange.topics import TopicKind
from penstock.authority.components.points import component as component_module
from penstock.crypto.hpke import SealingKey
from penstock.errors import MalformedError, RefusedError
from penstock.fabric.port import LEASE

SECRET: Final = bytes(range(32))
POLICY: Final = PolicyText("bank-1", "1", 0.0, b"<Policy>confidential</Policy>")
SEALED_TABLE: Final = {**TABLE, "DR(1)": msgspec.structs.replace(TABLE["DR(1)"], policies=(POLICY,))}


def sealing_pap(w: World, *names: tuple[str, str], **changed: Any) -> Any:
    return w.pap(*(names or NAMES), topic_secret=SECRET, table=SEALED_TABLE, **changed)


async def stored(w: World, topic: str) -> list[bytes]:
    return [sample.data for sample in await w.fabric.state(f"bank-{topic}")]


@world
async def test_what_components_say_is_sealed_and_policies_too(w: World) -> None:
    wire: list[bytes] = []
    async with sealing_pap(w) as p, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        async with await w.fabric.subscribe("bank-DREQ_1", instances=None) as tapped:
            await pep.write(TopicKind.DREQ, REQUEST)
            wire.append((await anext(tapped)).data)
        await pep.write(TopicKind.QPEP, RequiredNames(("account/read",)))
        await p.reconfigure({"DR(1)": msgspec.structs.replace(OTHER_PDP, policies=(POLICY,))})
        await w.settle()
        assert [one.record for one in pdp.seen] == [REQUEST, RequiredNames(("account/read",))]
        assert pdp.configuration.policies == (POLICY,)
        for topic in ("CONF_1", "QPEP_1", "RPDP_1"):
            wire += await stored(w, topic)
        assert len(wire) > 5
        for secret in (b"confidential", b"alice", b"account/read", SECRET):
            assert not any(secret in data for data in wire)
    assert w.notes == []


@world
async def test_who_does_not_have_the_topic_in_its_list_cannot_open_it(w: World) -> None:
    async with sealing_pap(w, *NAMES, ("pip1", "IR(1)")), w.component("pip1", "IR(1)") as pip:
        keys = DerivedTopicKeys("bank", SECRET)
        for topic, opens in (("IREQ_1", True), ("DREQ_1", False), ("CONF_1", False)):
            sealed = keys.seal(topic, 1, b"said", bytes)
            if opens:
                assert pip._keys.open(topic, sealed) == b"said"
            else:
                with pytest.raises(RefusedError, match=r"component\.key-missing"):
                    pip._keys.open(topic, sealed)
        with pytest.raises(RefusedError, match=r"seal\.cannot-open"):
            pip._keys.open("QPDP_1", keys.seal("IREQ_1", 1, b"said", bytes))


@world
async def test_plain_samples_are_refused_where_topics_are_sealed(w: World) -> None:
    async with sealing_pap(w), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        await w.forge("DREQ_1", REQUEST, key_of("pep1"), pep.configuration.certificate)
        assert (pdp.seen, w.codes) == ([], ["component.not-sealed"])


@world
async def test_keys_change_after_a_role_has_ended(w: World) -> None:
    async with sealing_pap(w) as p, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        await pep.write(TopicKind.QPEP, RequiredNames(("account/read",)))
        async with w.component("pdp2", "DR(1)") as gone:
            kept: HeldTopicKeys = gone._keys
        await w.settle()
        assert p.registry.number == 1
        await w.clock.advance(p.settings.rekey_within + 3)
        await w.settle()
        assert (p.registry.number, pep._keys.number, pdp._keys.number) == (2, 2, 2)
        assert p.registry.finished.keys() == {2}
        async with await w.fabric.subscribe("bank-DREQ_1", instances=None) as tapped:
            await pep.write(TopicKind.DREQ, REQUEST)
            said = (await anext(tapped)).data
        await w.settle()
        assert pdp.seen[-1].record == REQUEST
        with pytest.raises(RefusedError, match=r"component\.key-missing"):
            kept.open("DREQ_1", said)
        # One that joins now reads what is kept, and nothing under the old keys.
        async with w.component("pdp2", "DR(1)") as late:
            await w.settle()
            assert [one.record for one in late.seen] == [RequiredNames(("account/read",))]
            assert not late._keys.has(1)
    assert w.notes == []


@world
async def test_keys_of_specification_points_change_too(w: World) -> None:
    names = (("psp1", "SR(1)"), ("psp2", "SR(1)"))
    first, policy = sealing_pap(w, *names), SpecifiedPolicy("limits", "text", b"secret")
    await first.join()
    async with w.component("psp1", "SR(1)") as psp:
        async with w.component("psp2", "SR(1)") as gone:
            kept: HeldTopicKeys = gone._keys
        await w.settle()
        await w.clock.advance(first.settings.rekey_within + 3)
        await w.settle()
        assert (first.registry.finished.keys(), psp._keys.number) == ({2}, 2)
        await psp.write(TopicKind.SPOL, policy)
        await first.write_applied(PolicyApplied("bank", "psp1", 3, "bank-7", 9.5))
        await w.settle()
        assert [one.record for one in psp.seen] == [PolicyApplied("bank", "psp1", 3, "bank-7", 9.5)]
        for topic in ("SPOL_1", "APOL_1"):
            with pytest.raises(RefusedError, match=r"component\.key-missing"):
                kept.open(topic, (await stored(w, topic))[-1])
        # A PAP that takes over tells the keys that the one before has planned, and did not tell.
        async with w.component("psp2", "SR(1)"):
            first._announce = no_words
        await w.settle()
        await w.clock.advance(first.settings.rekey_within + 3)
        await w.settle()
        assert (first.registry.number, psp._keys.number) == (3, 2)
        await first.close()
        async with sealing_pap(w, *names, key=SECOND_PAP_KEY, id="pap2"):
            await w.clock.advance(LEASE + 3)
            await w.settle()
            assert psp._keys.number == 3
    assert {*w.codes} <= {"fabric.unreachable", "component.withdrawn"}


async def no_words(_number: int) -> None:
    raise RefusedError("fabric.unreachable", "the PAP is cut off")


@world
async def test_what_is_said_while_two_changes_of_keys_are_under_way_is_read(w: World) -> None:
    """A PAP writes under the first keys until all have applied the first change."""
    async with sealing_pap(w, *NAMES, ("pdp2", "DR(1)")) as p, w.component("pep1", "ER(1)") as pep:
        slow = w.component("pdp2", "DR(1)")
        await slow.join()
        await slow.close()
        for topics in (("RPEP_1", "DREP_1", "DREP_2"), ("RPEP_1", "DREP_1")):
            await p.reconfigure({"ER(1)": msgspec.structs.replace(TABLE["ER(1)"], read=topics)})
            await w.settle()
            await w.clock.advance(2)
            await w.settle()
        assert (pep._keys.number, p.registry.key_numbers) == (3, [1, 2, 3])
        await w.clock.advance(p.settings.patience + 1)
        await w.settle()
        assert p.registry.finished.keys() >= {2, 3}
        assert pep._verifier._ended.keys() == {"pdp2"}
        assert w.codes.count("component.not-applied") == 1


@world
async def test_a_newcomer_does_not_believe_a_role_that_ended_before_the_keys_change(w: World) -> None:
    async with sealing_pap(w):
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        certificate, keys = pep.configuration.certificate, pep._keys
        await pep.leave()
        await w.settle()
        async with w.component("pdp1", "DR(1)") as pdp:
            await w.clock.advance(1)
            plain = w.fabric.publisher

            async def sealing(topic: str, **named: Any) -> Any:
                publisher = await plain(topic, **named)
                publish = publisher.publish
                publisher.publish = lambda data, **more: publish(keys.seal("DREQ_1", 1, data, bytes), **more)  # type: ignore[method-assign]
                return publisher

            w.fabric.publisher = sealing  # type: ignore[method-assign]
            await w.forge("DREQ_1", REQUEST, key_of("pep1"), certificate)
            w.fabric.publisher = plain  # type: ignore[method-assign]
            assert (pdp.seen, w.codes) == ([], ["component.withdrawn"])


@world
async def test_another_pap_has_the_same_keys_and_changes_them_too(w: World) -> None:
    first = sealing_pap(w)
    await first.join()
    async with w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        await first.close()
        async with sealing_pap(w, key=SECOND_PAP_KEY, id="pap2") as second:
            await second.reconfigure({"ER(1)": None})
            await w.clock.advance(LEASE + 3)
            await w.settle()
            assert (pep.configuration, pdp.number, pdp._keys.number) == (None, 2, 2)
            assert second.registry.finished.keys() == {2}


@world
async def test_a_sample_under_a_key_that_is_on_its_way_is_read_when_it_comes(w: World) -> None:
    async with sealing_pap(w) as p, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        reader = next(one for instance, one in pdp._readers.items() if instance.kind is TopicKind.RPDP)
        late: list[Any] = []
        hear = reader.receive
        reader.receive = lambda sample, **named: late.append(sample)
        await p.reconfigure({"ER(1)": msgspec.structs.replace(TABLE["ER(1)"], read=("RPEP_1", "DREP_1", "DREP_2"))})
        await w.settle()
        await w.clock.advance(2)
        assert pep._keys.number == 2
        await pep.write(TopicKind.DREQ, REQUEST)
        await w.settle()
        assert pdp.seen == []
        reader.receive = hear
        for sample in late:
            hear(sample)
        await w.settle()
        assert [one.record for one in pdp.seen] == [REQUEST]
    assert w.notes == []


def test_samples_under_keys_that_never_come_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component_module, "HELD_BYTES", 1_000)

    @world
    async def flooded(w: World) -> None:
        async with sealing_pap(w), w.component("pdp1", "DR(1)") as pdp:
            async with await w.fabric.publisher("bank-DREQ_1", instance="pep1") as publisher:
                for number in (2, 2, 2, 2, 1_000):
                    junk = b"\xff\xff" + number.to_bytes(8) + bytes(300)
                    await publisher.publish(junk, key="bank/pep1/1")
            await w.settle()
            assert len(pdp._unopened) == 3
            assert w.codes == ["component.key-missing"] * 2

    flooded()


def test_keys_are_not_printed_and_a_secret_has_its_length() -> None:
    with pytest.raises(MalformedError, match=r"component\.settings"):
        DerivedTopicKeys("bank", b"short")
    keys = DerivedTopicKeys("bank", SECRET)
    held = HeldTopicKeys("bank")
    held.put(keys.keys_of(["DREQ_1", "SPOL_1"], [1, 2]))
    numbers = count()

    def random(length: int) -> bytes:
        return bytes([next(numbers)]) * length

    box = SealingKey(random)
    private = PrivateConfiguration(keys=keys.keys_of(["DREQ_1"], [1]), policies=(POLICY,))
    sealed = seal_private(private, box.public, "bank", "pep1", random)
    assert open_private(sealed, box, "bank", "pep1") == private
    with pytest.raises(RefusedError, match=r"keys\.unopened"):
        open_private(sealed, box, "bank", "pep2")
    for one in (keys, held, private):
        assert keys.key("DREQ_1", 1) not in repr(one).encode("unicode_escape")
        assert "DREQ" not in repr(one)
    assert is_sealed(keys.seal("SPOL_1", 7, b"", random))
    assert held.open("SPOL_1", keys.seal("SPOL_1", 2, b"text", random)) == b"text"
