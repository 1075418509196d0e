"""Results of pure functions are shared while simulations run, and nothing that has failed."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from penstock.crypto.keys import PublicKey, SigningKey
from penstock.errors import RefusedError
from penstock.simulate import pure_work
from penstock.simulate.pure_work import shared_results
from penstock.simulate.run import run
from penstock.simulate.scenario import SimulationScenario
from penstock.trust import signed as statements
from penstock.trust.policy_events import PolicyEvent, Revoke
from penstock.trust.policy_state import PolicyAuthor

KEY = SigningKey(b"k" * 32)


def test_results_are_the_same_and_shared_results(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    verify = PublicKey.verify

    def counted(self: PublicKey, message: bytes, signature: bytes) -> None:
        calls.append(message)
        verify(self, message, signature)

    monkeypatch.setattr(PublicKey, "verify", counted)
    plain = KEY.sign(b"m")
    with shared_results():
        assert KEY.sign(b"m") == KEY.sign(b"m") == plain
        for _ in range(3):
            KEY.public.verify(b"m", plain)
        assert calls == [b"m"]
        for _ in range(2):
            with pytest.raises(RefusedError):
                KEY.public.verify(b"other", plain)
            with pytest.raises(RefusedError):
                SigningKey(b"j" * 32).public.verify(b"m", plain)
        assert calls == [b"m", b"other", b"m", b"other", b"m"]
    assert PublicKey.verify is counted


def test_statements_are_shared_but_no_forged_one() -> None:
    signed = PolicyAuthor(KEY).change(datetime(2026, 1, 1, tzinfo=UTC), Revoke(("cert:" + "a" * 52,)))
    data = signed.to_bytes()
    with shared_results():
        one, other = (statements.parse_signed(data, PolicyEvent) for _ in range(2))
        assert one is other
        assert one.verify() is other.verify()
        assert one.verify() == signed
        for forged in (replace(one, signature=b"s" * 64), replace(one, body=(b"other",), _signed=b"")):
            with pytest.raises(RefusedError):
                forged.verify()
    assert statements.parse_signed(data, PolicyEvent) is not one


@pytest.mark.parametrize("world", ["rule-book", "roles"])
def test_a_run_is_the_same_when_all_it_reads_was_read_by_another(world: str) -> None:
    scenario = SimulationScenario(world, 3, options={"size": 60})
    alone = run(scenario)
    with shared_results():
        for _ in range(2):
            shared = run(scenario)
            assert shared.trace == alone.trace
            assert shared.counts == alone.counts


def test_results_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pure_work, "_MOST", 3)
    results: pure_work._Results[int, int] = pure_work._Results()
    assert [results.keep(number, 2 * number) for number in range(5)] == [0, 2, 4, 6, 8]
    assert results == {3: 6, 4: 8}
