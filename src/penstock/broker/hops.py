"""One neighbour's sessions: which of its words count, and when to ask for all of them again.

What a neighbour has told me holds for the session in which it said so. A greeting under a later stamp begins a session
and voids the one before; words of earlier sessions, and words heard before, are ignored; a word that is missing makes
me ask for a new session. So whatever a transport loses, repeats or keeps back, I either hold exactly what the neighbour
meant to tell me, or know that I do not.
"""

from enum import Enum

from penstock.broker.messages import Again, Body, Greeting, Hop, Pulse, Stamp
from penstock.errors import RefusedError
from penstock.model.values import INTEGER_MAX


class Heard(Enum):
    """What a hop means for its receiver."""

    NEW = "the neighbour begins a session"
    REBORN = "the neighbour begins a session, and has forgotten mine"
    NEXT = "the next counted word: take it"
    NOTHING = "old, repeated, or without content"
    LOST = "ask for a new session"
    ASKED = "begin a new session of my own"


class Hops:
    """Both directions of one link. `begin` on every new connection, and whenever `hear` says `ASKED` or `REBORN`."""

    def __init__(self, incarnation: int) -> None:
        self._stamp = Stamp(incarnation, 0)
        self._sent = 0
        self._heard = Stamp(0, 0)
        self._taken = 0
        #: no greeting since the connection was made, or a word was lost since
        self._waiting = True

    @property
    def greeted(self) -> bool:
        """Whether I hold what the neighbour has told me."""
        return not self._waiting

    def connect(self) -> None:
        """Expect a greeting: there is a new connection."""
        self._waiting = True

    def begin(self) -> Hop:
        """Begin a session of my own and return its greeting."""
        self._stamp = Stamp(self._stamp.incarnation, self._stamp.session + 1)
        self._sent = 0
        return Hop(self._stamp, 0, Greeting())

    def say(self, body: Body) -> Hop:
        """Return a word in the present session."""
        self._sent += body.COUNTED
        return Hop(self._stamp, self._sent, body)

    def again(self) -> Hop:
        """Return the request for a session after all that I have heard of."""
        return self.say(Again(self._heard))

    def hear(self, hop: Hop) -> Heard:
        """Say what a hop means. Raises `RefusedError` (`network.stamp`) when no later stamp is left."""
        if isinstance(hop.body, Again):
            return self._hear_again(hop.body.after)
        if isinstance(hop.body, Greeting):
            return self._hear_greeting(hop.stamp)
        if isinstance(hop.body, Pulse):
            return self._hear_pulse(hop)
        if self._waiting or hop.stamp != self._heard or hop.number <= self._taken:
            return Heard.NOTHING
        if hop.number > self._taken + 1:
            self._waiting = True
            return Heard.LOST
        self._taken = hop.number
        return Heard.NEXT

    def _hear_greeting(self, stamp: Stamp) -> Heard:
        if stamp <= self._heard:
            # On a new connection: its clock went backwards, or this is an echo of an earlier one.
            return Heard.LOST if self._waiting else Heard.NOTHING
        reborn = not self._waiting and stamp.incarnation != self._heard.incarnation
        self._heard, self._taken, self._waiting = stamp, 0, False
        return Heard.REBORN if reborn else Heard.NEW

    def _hear_pulse(self, hop: Hop) -> Heard:
        if not self._waiting and (hop.stamp, hop.number) <= (self._heard, self._taken):
            return Heard.NOTHING
        # The greeting, or some word since, has not come, and what comes in order would have come before the pulse.
        self._heard, self._waiting = max(hop.stamp, self._heard), True
        return Heard.LOST

    def _hear_again(self, after: Stamp) -> Heard:
        if after < self._stamp:
            return Heard.NOTHING
        if after.incarnation >= INTEGER_MAX or after.session >= INTEGER_MAX:
            raise RefusedError("network.stamp", "a neighbour claims a session after which there is none")
        self._stamp = after
        return Heard.ASKED
