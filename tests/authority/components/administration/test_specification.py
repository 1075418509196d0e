"""PSPs specify policies in several languages; PAPs compile, apply and answer, also when one of them is killed."""

import asyncio
from typing import Any, Final

import msgspec
import pytest
from tests.authority.components.kit import KINDS, PAP_KEY, SECOND_PAP_KEY, TABLE, administration, key_of
from tests.authority.components.points.test_component import World, world
from tests.policy.kit import NOW

from penstock.authority.components.administration.live_domain import read_live_domain
from penstock.authority.components.administration.specification import (
    SPECIFIED_BYTES,
    SPECIFIED_POLICIES,
    SPECIFIED_WAITING,
    PolicyAdministration,
    PolicyLanguage,
    SpecificationBook,
    SpecificationComponent,
    SpecificationRule,
)
from penstock.authority.components.exchange.samples import PolicyApplied, SpecifiedPolicy
from penstock.authority.components.points.component import ComponentSettings
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.errors import RefusedError
from penstock.fabric.port import LEASE
from penstock.fabric.tasks import waited_for
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.syntax.forms import read_root
from penstock.roles.engine import SetFact

NAMES: Final = (("psp1", "SR(1)"), ("psp2", "SR(2)"), ("pdp1", "DR(1)"), ("pep1", "ER(1)"))
RULES: Final = {"SR(1)": SpecificationRule(("DR(1)",), frozenset({"account", "loan"}))}
CEDAR: Final = (
    b'permit (principal, action == Action::"look", resource) when { principal has rank && principal.rank > 3 };'
)
TEXT: Final = b"""
attribute rank { category = subject id = "rank" type = integer }
attribute does { category = action id = "urn:oasis:names:tc:xacml:1.0:action:action-id" type = string }
policy p { apply deny-overrides rule r { permit target clause does == "look" condition rank > 3 } }
"""
OTHERS: Final = b"permit (principal, action, resource is staff);"
LANGUAGES: Final = {PolicyLanguage.CEDAR: CEDAR, PolicyLanguage.TEXT: TEXT}


class Domain(World):
    """A domain with PAPs that have rules."""

    def administration(self, name: str = "pap1", **changed: Any) -> PolicyAdministration:
        table = {**TABLE, "SR(2)": TABLE["SR(1)"]}
        settings = administration(*NAMES, id=name, table=table, **changed)
        key = PAP_KEY if name == "pap1" else SECOND_PAP_KEY
        return PolicyAdministration(self.fabric, key, settings, rules=RULES, clock=self.clock, note=self.notes.append)

    def settings(self, name: str) -> ComponentSettings:
        role = dict(NAMES)[name]
        return ComponentSettings(
            domain="bank",
            id=name,
            kind=KINDS[role.partition("(")[0]],
            role=role,
            administrators=frozenset({PAP_KEY.principal, SECOND_PAP_KEY.principal}),
        )

    def psp(self, name: str = "psp1") -> SpecificationComponent:
        return SpecificationComponent(
            self.fabric, key_of(name), self.settings(name), clock=self.clock, note=self.notes.append
        )

    def pdp(self) -> DecisionComponent:
        return DecisionComponent(
            self.fabric, key_of("pdp1"), self.settings("pdp1"), clock=self.clock, note=self.notes.append
        )

    def pep(self) -> EnforcementComponent:
        return EnforcementComponent(
            self.fabric, key_of("pep1"), self.settings("pep1"), clock=self.clock, note=self.notes.append
        )

    async def done(self, work: Any) -> Any:
        """Wait for something while time passes."""
        task = waited_for(work)
        for _ in range(100):
            await self.settle()
            if task.done():
                return await task
            await self.clock.advance(0.25)
        raise AssertionError("it takes too long")

    async def refused(self, psp: SpecificationComponent, name: str, text: bytes, language: str) -> str:
        with pytest.raises(RefusedError) as caught:
            await self.done(psp.specify(name, text, PolicyLanguage(language)))
        assert caught.value.code == "specification.refused"
        return str(caught.value.fields["reason"])


def domain(test: Any) -> Any:
    async def with_domain(w: World) -> None:
        made = Domain()
        async with made.fabric:
            await test(made)

    with_domain.__name__ = test.__name__
    return world(with_domain)


def asked(rank: int, resource: str = "account") -> AccessQuestion:
    return AccessQuestion.of(Entity("user", "ann", {"rank": rank}), "look", (resource, "7"))


def test_a_checkpoint_has_what_was_specified() -> None:
    @domain
    async def run(w: Domain) -> None:
        async with w.administration(compact_after=0) as first, w.pdp(), w.psp() as psp:
            applied = await w.done(psp.specify("accounts", LANGUAGES[PolicyLanguage.CEDAR], PolicyLanguage.CEDAR))
            for number in range(20):
                await first.change_roles([SetFact("admitted", True, (str(key_of("nobody").principal), "ER", number))])
            await w.settle()
            assert len(await w.fabric.state("bank-CONF_1")) < 20
            async with w.administration("pap2") as second:
                assert second.book.identities == first.book.identities
                live = await read_live_domain(w.fabric, second.settings, w.clock.now())
                assert live.specified == {applied.policy}

    run()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_specified_policy_decides_whatever_its_language(language: PolicyLanguage) -> None:
    @domain
    async def run(w: Domain) -> None:
        async with w.administration() as pap, w.pdp(), w.pep() as pep, w.psp() as psp:
            begun = w.clock.now()
            applied = await w.done(psp.specify("accounts", LANGUAGES[language], language))
            # Identity and change time are the PAP's; the apply time is the base time of the reconfiguration.
            assert (applied.policy, applied.refusal) == ("bank-2", "")
            assert applied.time == await pap.base_time(2) >= begun + pap.settings.notice
            (text,) = pap.registry.table["DR(1)"].policies
            assert (text.id, text.revision, text.changed) == ("bank-2", "2", begun)
            for rank, resource, effect in ((4, "account", "Permit"), (3, "account", "NotApplicable")):
                found = await w.done(pep.decide(asked(rank, resource)))
                assert found.effect == effect
            assert (await w.done(pep.decide(asked(4, "loan")))).effect == "Permit"
        assert w.codes == []

    run()


@domain
async def test_a_policy_decides_about_nothing_but_the_types_of_its_rule(w: Domain) -> None:
    anybody = b"permit (principal, action, resource);"
    async with w.administration() as pap, w.psp() as psp:
        await w.done(psp.specify("all", anybody, PolicyLanguage.CEDAR))
        (text,) = pap.registry.table["DR(1)"].policies
    policy = CompiledPolicy(read_root(text.text))
    for resource, decision in (("account", "Permit"), ("loan", "Permit"), ("staff", "NotApplicable")):
        assert decide(policy.evaluate, asked(4, resource).request(), NOW).results[0].decision.plain == decision


@domain
async def test_policies_are_replaced_and_withdrawn(w: Domain) -> None:
    async with w.administration() as pap, w.pdp(), w.pep() as pep, w.psp() as psp:
        first = await w.done(psp.specify("accounts", CEDAR, PolicyLanguage.CEDAR))
        other = await w.done(psp.specify("more", TEXT, PolicyLanguage.TEXT))
        again = await w.done(psp.specify("accounts", CEDAR.replace(b"> 3", b"> 5"), PolicyLanguage.CEDAR))
        # An update keeps the identity, and gets another revision.
        assert (first.policy, other.policy, again.policy) == ("bank-2", "bank-3", "bank-2")
        assert [(one.id, one.revision) for one in pap.registry.table["DR(1)"].policies] == [
            ("bank-3", "3"),
            ("bank-2", "4"),
        ]
        assert (await w.done(psp.withdraw("more"))).policy == "bank-3"
        assert (await w.done(pep.decide(asked(4)))).effect == "NotApplicable"
        assert (await w.done(pep.decide(asked(6)))).effect == "Permit"
        with pytest.raises(RefusedError) as caught:
            await w.done(psp.withdraw("unknown"))
        assert caught.value.fields["reason"] == "specification.unknown"
        # A policy that is in force already reconfigures nobody.
        number = pap.registry.number
        changed = CEDAR.replace(b"> 3", b"> 5")
        assert (await w.done(psp.specify("accounts", changed, PolicyLanguage.CEDAR))).policy == "bank-2"
        assert pap.registry.number == number
        # An identity is never given again.
        assert (await w.done(psp.specify("more", TEXT, PolicyLanguage.TEXT))).policy == "bank-3"


@domain
async def test_what_a_psp_may_not_specify_is_refused_and_changes_nothing(w: Domain) -> None:
    refers = b"policyset s { apply deny-overrides reference policy other }"
    async with w.administration() as pap, w.psp() as psp, w.psp("psp2") as stranger:
        assert await w.refused(psp, "accounts", OTHERS, "cedar") == "specification.target"
        assert await w.refused(psp, "accounts", CEDAR, "text") == "specification.language"
        assert await w.refused(psp, "accounts", refers, "text") == "policy.reference"
        assert await w.refused(psp, "accounts", b"permit (principal);", "cedar") == "cedar.syntax"
        assert await w.refused(psp, "a b", CEDAR, "cedar") == "component.name"
        assert await w.refused(stranger, "accounts", CEDAR, "cedar") == "specification.rule"
        assert pap.registry.number == 1
        assert pap.registry.table["DR(1)"].policies == ()
    assert "specification.target" in w.codes


@domain
async def test_another_pap_goes_on_where_the_owner_stopped(w: Domain) -> None:
    first, second = w.administration(), w.administration("pap2", strength=1)
    await first.join()
    await second.join()
    async with w.pdp(), w.psp() as psp:
        waiting = waited_for(psp.specify("accounts", CEDAR, PolicyLanguage.CEDAR))
        await w.settle()
        # It is planned and announced; nobody has applied it when its PAP is killed.
        assert first.book.planned == second.book.planned == {("psp1", next(iter(first.book.planned))[1]): ("bank-2", 2)}
        first._owned = None
        await first.close()
        applied = await w.done(waiting)
        assert (applied.policy, applied.refusal) == ("bank-2", "")
        assert applied.time == await second.base_time(2)
        assert (await w.done(psp.specify("more", TEXT, PolicyLanguage.TEXT))).policy == "bank-3"
        assert second.book.planned == {}
    # A PAP that starts later knows all of it, and plans nothing again.
    third = w.administration()
    await third.join()
    await w.settle()
    assert third.book.identities == second.book.identities
    assert (third.book.answered, third.book.waiting, third.book.planned) == (second.book.answered, {}, {})
    assert third.registry.table == second.registry.table
    await third.close()
    await second.close()


@domain
async def test_who_leaves_learns_nothing_more(w: Domain) -> None:
    psp = w.psp()
    async with w.administration() as pap:
        await psp.join()
        await pap.close()
        waiting = waited_for(psp.specify("accounts", CEDAR, PolicyLanguage.CEDAR))
        await w.settle()
        await psp.close()
        with pytest.raises(RefusedError, match=r"component\.not-joined"):
            await waiting


@domain
async def test_a_psp_whose_role_has_ended_specifies_nothing(w: Domain) -> None:
    async with w.administration() as pap:
        psp = w.psp()
        await psp.join()
        certificate = psp.configuration.certificate  # type: ignore[union-attr]  # it has joined
        await psp.leave()
        await w.settle()
        await w.clock.advance(1)
        policy = SpecifiedPolicy("accounts", "cedar", CEDAR)
        await w.forge("SPOL_1", policy, key_of("psp1"), certificate, id="psp1")
        assert (w.codes, pap.registry.number, pap.book.waiting) == (["component.withdrawn"], 1, {})
        # A PAP that starts later does not believe it either.
    async with w.administration("pap2") as other:
        await w.clock.advance(LEASE + 1)
        await w.settle()
        assert (other.registry.number, other.book.waiting) == (1, {})


@domain
async def test_a_policy_of_a_role_that_ends_before_it_is_planned_is_refused(w: Domain) -> None:
    async with w.administration() as pap, w.pdp(), w.psp() as psp:
        first = waited_for(psp.specify("accounts", CEDAR, PolicyLanguage.CEDAR))
        second = waited_for(psp.specify("more", TEXT, PolicyLanguage.TEXT))
        await w.settle()
        assert len(pap.book.waiting) == 2
        await pap.change_roles([SetFact("admitted", False, (str(key_of("psp1").principal), "SR", 1))])
        assert (await w.done(first)).policy == "bank-2"
        with pytest.raises(RefusedError) as caught:
            await w.done(second)
        assert caught.value.fields["reason"] == "component.withdrawn"
        assert [one.id for one in pap.registry.table["DR(1)"].policies] == ["bank-2"]


@domain
async def test_a_psp_has_a_bounded_number_of_policies(w: Domain) -> None:
    async with w.administration() as pap, w.psp() as psp:
        author = str(key_of("psp1").principal)
        pap.book.identities.update({(author, f"n{one}"): f"bank-{one}" for one in range(2, SPECIFIED_POLICIES + 2)})
        assert await w.refused(psp, "more", CEDAR, "cedar") == "specification.limit"
        # The identities of others are not given again either.
        pap.book.identities["other", "n7"] = pap.book.identities.pop((author, "n7"))
        assert (
            await w.done(psp.specify("more", CEDAR, PolicyLanguage.CEDAR))
        ).policy == f"bank-{SPECIFIED_POLICIES + 2}"


@domain
async def test_a_psp_leaves_room_for_the_policies_of_others(w: Domain) -> None:
    async with w.administration() as pap, w.psp() as psp:
        assert (await w.done(psp.specify("first", CEDAR, PolicyLanguage.CEDAR))).policy == "bank-2"
        (first,) = pap.registry.table["DR(1)"].policies
        others = msgspec.structs.replace(first, id="bank-9", text=b" " * SPECIFIED_BYTES)
        mine = msgspec.structs.replace(first, text=b" " * (SPECIFIED_BYTES - len(first.text) + 100))
        row = pap.registry.table["DR(1)"]
        # Others have filled their room, which is not this author's.
        pap.registry.table["DR(1)"] = msgspec.structs.replace(row, policies=(first, others))
        assert (await w.done(psp.specify("more", CEDAR, PolicyLanguage.CEDAR))).policy == "bank-3"
        pap.registry.table["DR(1)"] = msgspec.structs.replace(row, policies=(mine,))
        assert await w.refused(psp, "again", CEDAR, "cedar") == "specification.limit"
        # A shorter policy in place of the long one is taken.
        changed = CEDAR + b"\n"
        assert (await w.done(psp.specify("first", changed, PolicyLanguage.CEDAR))).policy == "bank-2"


@domain
async def test_policies_that_wait_are_bounded(w: Domain) -> None:
    async with w.administration() as pap, w.pdp(), w.psp() as psp:
        # The first one is planned; the others wait until all have applied it.
        asked_for = [
            waited_for(psp.specify(f"n{one}", CEDAR, PolicyLanguage.CEDAR)) for one in range(SPECIFIED_WAITING + 2)
        ]
        await w.settle()
        assert len(pap.book.waiting) == SPECIFIED_WAITING
        assert (pap.counts, w.codes) == ({"component.flood": 2}, ["component.flood"])
        assert (await w.done(asked_for[0])).policy == "bank-2"
        assert (await w.done(asked_for[1])).policy == "bank-3"
    results = await asyncio.gather(*asked_for, return_exceptions=True)
    assert isinstance(results[-1], RefusedError)


def test_answers_are_taken_in_once() -> None:
    book = SpecificationBook("bank", RULES)
    book.planned["psp1", 3] = ("bank-2", 2)
    assert book.applied({}) == []
    (answer,) = book.applied({2: 7.5})
    assert answer == PolicyApplied("bank", "psp1", 3, "bank-2", 7.5)
    book.told(answer)
    assert (book.applied({2: 7.5}), book.answered) == ([], {"psp1": 3})
