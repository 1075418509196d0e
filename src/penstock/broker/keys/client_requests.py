"""Answer clients' requests about keys: status for operators, changes for a type's managers, old keys for readers.

    status          operators of the broker, about the keys that it holds; managers of a type, about its groups
    join            operators: the broker immediately requests what it may have
    rotate, evict   the owner of the type, and principals with the right `keys` on it, at the managing broker
    forget          principals that may manage all types that are managed there: one log has the keys of all
    fetch-keys      anybody: a manager decides by the right `history`, and seals to the key in the request. Operators of
                    a broker that has the right also get the keys that the broker holds, for its own jobs

A change is answered when it is in the log, and `forget` when the log has been truncated.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.broker.core.core import Core
from penstock.broker.keys.node_keys import Keys, Released
from penstock.broker.keys.sealing import seal_history
from penstock.broker.wire.protocol import LABELS, AskKeys, FetchKeys, KeyWord
from penstock.codec.wire import Wire
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.fabric.tasks import in_background
from penstock.model.instants import in_utc
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.key_statements import EpochStatement, KeyGroup, KeyHistory, KeyRequest, KeyWish
from penstock.trust.refusals import LackedRight
from penstock.trust.signed import parse_signed

Outcome: TypeAlias = "Wire | PenstockError"
Answer: TypeAlias = Callable[[Outcome], None]
"""Receives the answer to a request, or the error. Called once."""

IsOperator: TypeAlias = Callable[[Principal], bool]

#: seconds between two checks whether something is done
_LOOK: Final = 0.02


@dataclass(frozen=True, slots=True)
class Asker:
    """The client that asks, and its credentials."""

    principal: Principal
    shown: Credentials


class KeyDesk:
    """Answers clients' requests about keys."""

    def __init__(self, core: Core, keys: Keys, is_operator: IsOperator) -> None:
        self._core = core
        self._keys = keys
        self._is_operator = is_operator
        self._waiting: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Cancel all requests that still wait."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    def ask(self, asker: Asker, question: AskKeys | FetchKeys, answer: Answer) -> None:
        """Answer a request, immediately or later. Raises `RefusedError` and `MalformedError`."""
        if isinstance(question, FetchKeys):
            self._fetch(asker, question, answer)
            return
        match question.word:
            case KeyWord.STATUS:
                answer(self._status(asker))
            case KeyWord.JOIN:
                self._check_operator(asker)
                self._keys.join_now()
                answer(self._status(asker))
            case KeyWord.ROTATE:
                self._rotate(asker, question, answer)
            case KeyWord.EVICT:
                self._evict(asker, question, answer)
            case KeyWord.FORGET:
                self._forget(asker, question, answer)

    # Status.

    def _status(self, asker: Asker) -> Wire:
        operator = self._is_operator(asker.principal)
        managed = dict(self._managed(asker, operator=operator))
        if not operator and not managed:
            self._check_operator(asker)
        found: dict[str, Wire] = {"broker": str(self._core.principal), "managed": managed}
        if operator:
            found["held"] = dict(self._held())
            core = self._core
            found["waiting"] = {"publications": len(core.exchange.gathering), "sealed blocks": core.router.waiting}
        return found

    def _held(self) -> Iterator[tuple[str, Wire]]:
        now = self._core.now()
        for group, member in sorted(self._keys.members.items(), key=lambda item: item[0].scope):
            yield (
                group.scope,
                {**self._about(group, member.word), "seals": member.seals(now), "evicted": member.evicted},
            )

    def _managed(self, asker: Asker, *, operator: bool) -> Iterator[tuple[str, Wire]]:
        for group in self._keys.managed():
            holders = self._keys.manager.holders(group)
            told = {**self._about(group, self._keys.manager.word(group)), "members": len(holders)}
            if self._may_manage(asker, group):
                # Only principals that decide who may read learn who does.
                yield group.scope, {**told, "holders": [str(broker) for broker in sorted(holders)]}
            elif operator:
                yield group.scope, told

    def _about(self, group: KeyGroup, word: EpochStatement | None) -> dict[str, Wire]:
        of: dict[str, Wire] = {"type": str(group.type), "attribute": self._keys.claims.attribute_name(group)}
        if word is None:
            return {**of, "epoch": 0, "begun": None, "until": None}
        return {**of, "epoch": word.epoch, "begun": word.begun, "until": word.until}

    # Changes.

    def _rotate(self, asker: Asker, question: AskKeys, answer: Answer) -> None:
        before = {group: self._epoch(group) for group in self._meant(asker, question) if _is_asked(group, question)}
        if any(self._keys.manager.relabels(self._core.now(), group) for group in before):
            raise RefusedError("keys.too-soon", "the labels are changing already", hint="wait until that is over")
        for group in before:
            self._keys.rotate(group)
        self._later(
            lambda: all(self._epoch(group) > epoch for group, epoch in before.items()),
            lambda: self._changed(before),
            answer,
        )

    def _evict(self, asker: Asker, question: AskKeys, answer: Answer) -> None:
        broker, manager = question.broker, self._keys.manager
        groups = [group for group in self._meant(asker, question) if broker in manager.holders(group)]
        if broker is None or not groups:
            raise RefusedError(
                "keys.not-member",
                "the broker to evict holds none of these keys",
                hint="run `penstock sealing show` as the type's owner to see who holds them",
            )
        for group in groups:
            self._keys.evict(group, broker)
        # Labels may have to wait until their last change is complete.
        awaited = [group for group in groups if not group.labels]
        self._later(
            lambda: not any(broker in manager.holders(group) for group in awaited),
            lambda: self._changed(groups),
            answer,
        )

    def _forget(self, asker: Asker, question: AskKeys, answer: Answer) -> None:
        manager = self._keys.manager
        if question.before is None:
            raise RefusedError("keys.wrong-request", "a request to forget keys lacks the time before which to forget")
        self._meant(asker, AskKeys(question.number, question.word))
        place = manager.position
        before = in_utc(question.before)
        self._keys.forget(before)
        # Old keys are in the log until it has dropped the records before the checkpoint.
        self._later(lambda: manager.has_forgotten(before, place), lambda: {"records": manager.position - place}, answer)

    def _meant(self, asker: Asker, question: AskKeys) -> list[KeyGroup]:
        """Return the groups that a request is about. Raises `RefusedError` (`keys.not-manage…`)."""
        of_type, name = question.type, question.attribute
        groups = [group for group in self._keys.managed() if of_type in (None, group.type)]
        if name and of_type is not None:
            ids = self._keys.claims.attributes(of_type, name)
            groups = [group for group in groups if group.attribute in ids or (group.labels and name == LABELS)]
        if not groups:
            raise RefusedError(
                "keys.not-managed",
                "this broker does not manage such keys",
                hint="run `penstock sealing show` to see its keys, and compare broker, type and attribute",
            )
        if not all(self._may_manage(asker, group) for group in groups):
            raise LackedRight(asker.principal, Right.KEYS, groups[0].type).refuse("keys.not-manager")
        return groups

    def _may_manage(self, asker: Asker, group: KeyGroup) -> bool:
        return self._keys.claims.manages(self._core.now(), group.type, asker.principal, asker.shown)

    def _changed(self, groups: Iterable[KeyGroup]) -> dict[str, Wire]:
        return {group.scope: self._about(group, self._keys.manager.word(group)) for group in groups}

    def _epoch(self, group: KeyGroup) -> int:
        word = self._keys.manager.word(group)
        return 0 if word is None else word.epoch

    def _check_operator(self, asker: Asker) -> None:
        if not self._is_operator(asker.principal):
            raise RefusedError(
                "broker.not-operator",
                f"{asker.principal.short} is not an operator of this broker, and only operators may ask for this",
                hint="let the broker's administrator add you to `operators` in its node file",
            )

    # Old keys.

    def _fetch(self, asker: Asker, question: FetchKeys, answer: Answer) -> None:
        limits = self._core.settings.limits
        request = parse_signed(question.signed, KeyRequest).verify()
        value = request.value
        if value.wish is not KeyWish.HISTORY or value.broker != asker.principal:
            raise RefusedError("keys.wrong-request", "a client may ask only for old keys, and only for itself")
        if len(self._keys.fetching) >= limits.key_fetching or value.public in self._keys.fetching:
            raise RefusedError(
                "keys.busy", "too many clients ask for old keys at the same time", hint="try again later"
            )
        found: list[Released] = []
        live = self._live(asker, value)

        def released() -> Outcome:
            told = found[0].value
            if isinstance(told, KeyHistory):
                return {"history": found[0].to_bytes(), "live": live}
            if live:
                return {"history": b"", "live": live}
            if told.code == "keys.not-entitled":
                return LackedRight(asker.principal, Right.HISTORY, value.group.type).refuse(told.code)
            return RefusedError(told.code, _REASONS.get(told.code, "the key manager refuses the keys"))

        def over() -> None:
            self._keys.fetching.pop(value.public, None)
            self._keys.forwarded(value.group)

        self._keys.fetching[value.public] = found.append
        try:
            self._keys.forward(request)
        except PenstockError:
            # For example a request that is too large for an event. Otherwise a few of these would block all others.
            over()
            raise
        self._later(lambda: bool(found), released, answer, over)

    def _live(self, asker: Asker, request: KeyRequest) -> list[Wire]:
        """Return this broker's current keys for its own jobs, each sealed like keys of old epochs."""
        group, claims = request.group, self._keys.claims
        if not self._is_operator(asker.principal) or not claims.has_history(group, self._core.principal):
            return []
        held = [(epoch, key) for scope, epoch, key in self._core.ring.items() if scope == group.scope]
        if group.labels:
            held = self._core.labels.keys(group.type)
        random = self._core.settings.random
        return [
            [epoch, seal_history(group, request.broker, request.public, [key], random)] for epoch, key in sorted(held)
        ]

    # Answers that take time.

    def _later(
        self,
        done: Callable[[], bool],
        result: Callable[[], Outcome],
        answer: Answer,
        over: Callable[[], object] = lambda: None,
    ) -> None:
        """Answer when `done` returns True, or with an error after `key_answer`."""

        async def wait() -> None:
            try:
                async with asyncio.timeout(self._core.settings.limits.key_answer / 1000):
                    while not done():
                        await asyncio.sleep(_LOOK)
                answer(result())
            except TimeoutError:
                answer(
                    FailedError(
                        "keys.no-answer",
                        "no key manager has answered in time, or its log could not be written",
                        hint="check that a key manager runs and is reachable; the request may still be carried out",
                    )
                )
            finally:
                over()

        task = in_background("answering about keys", wait())
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)


_REASONS: Final = {
    "keys.no-history": "none of these epochs is both over and kept",
}


def _is_asked(group: KeyGroup, question: AskKeys) -> bool:
    """Return whether to start an epoch of a group: labels only if the request names them."""
    return not group.labels or question.attribute == LABELS
