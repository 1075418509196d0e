"""What a key manager says to brokers: signed, and sealed where it is for one of them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from penstock.broker.key_group import GroupState, Holder
from penstock.broker.key_outputs import Reply, Tell
from penstock.broker.key_sealing import seal_history, seal_welcome, wrap_missed, wrap_path
from penstock.crypto import SigningKey
from penstock.crypto.key_tree import Rekey
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, Secret
from penstock.errors import RefusedError
from penstock.model.instants import in_utc
from penstock.model.principals import Principal
from penstock.trust.key_messages import KeyHistory, KeyNotice, KeyPathAnswer, KeyRequest, KeyWelcome, Word, split
from penstock.trust.signed import sign_value


class KeyAnswers:
    """See the module. Raises `RefusedError` (`keys.not-member`) for groups that have not begun."""

    def __init__(self, key: SigningKey, random: RandomBytes) -> None:
        self._key = key
        self._random = random

    def word(self, state: GroupState) -> Word:
        """Return this manager's word on the epoch of a group, whichever replica began it."""
        if state.word is None:
            raise RefusedError("keys.not-member", "this key group has not begun", hint="join it first")
        return replace(state.word, manager=self._key.principal)

    def welcome(self, state: GroupState, broker: Principal, holder: Holder, public: bytes) -> Reply:
        """Give a member its leaf, and where it is."""
        content = holder.leaf.expose() + state.place(broker)
        sealed = seal_welcome(state.group, broker, public, content, self._random)
        return Reply(broker, sign_value(KeyWelcome(self.word(state), broker, public, sealed), self._key))

    def path(self, state: GroupState, broker: Principal, holder: Holder, missed: Sequence[Secret] = ()) -> Reply:
        """Tell a member where it is, and the keys of the last epochs before this one, which it has missed."""
        salt, about = self._random(SALT_BYTES), (state.group, state.epoch)
        sealed = wrap_path(holder.leaf, state.place(broker), salt, *about)
        keys = wrap_missed(holder.leaf, missed, salt, *about) if missed else b""
        return Reply(broker, sign_value(KeyPathAnswer(self.word(state), broker, salt, sealed, keys), self._key))

    def history(self, state: GroupState, request: KeyRequest, first: int, keys: Sequence[Secret]) -> Reply:
        """Release keys of epochs that follow each other."""
        sealed = seal_history(state.group, request.broker, request.public, keys, self._random)
        answer = KeyHistory(self.word(state), request.broker, request.public, first, sealed)
        return Reply(request.broker, sign_value(answer, self._key))

    def epoch(self, word: Word, rekey: Rekey, most: int) -> list[Tell]:
        """Tell everybody that an epoch has begun, with so many nodes at most in one statement."""
        return [Tell(word.group, sign_value(part, self._key)) for part in split(word, rekey, most)]

    def notice(self, now: datetime, state: GroupState) -> Tell:
        """Tell everybody which epoch there is."""
        return Tell(state.group, sign_value(KeyNotice(self.word(state), in_utc(now)), self._key))
