"""What each attack may cost the honest parties: the only table that the suite uses.

Nothing may ever be delivered to a reader after its revocation is complete, and the revocation of each attack has to
become complete: these two are not in the table. Events that were accepted and never arrived count in every run; what
depends on the speed of the machine counts with `LONG=1` only.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of one attack."""

    #: whether it is part of `make test`; all are part of `make soak`
    short: bool = False
    #: whether a broker that starts after the attack must know what was revoked
    newcomer: bool = False
    #: whether it leaves something behind that the next attack would suffer from
    stays: bool = False
    #: accepted events that never arrive; None where nothing is promised
    lost: int | None = 0
    #: the least part of the usual events in a second, and the longest pause in seconds
    throughput: float = 0.9
    pause: float = 2.0
    #: seconds from the restart of a broker that was killed to the next event
    healing: float = 2.0
    #: seconds of processor time of all brokers for one blow, for attacks that make brokers work: much more than it
    #: takes, much less than does harm
    work: float = float("inf")
    #: megabytes by which the largest broker may grow, and kilobytes that all decision logs may
    memory: int = 100
    logged: int = 1024


#: whoever has rights may cost others what the quotas of a principal allow: half of a broker's time (`client_work`)
_QUOTA = 0.5

STRANGERS = {
    "heavy hellos": Bounds(short=True, work=1.0),
    "empty hellos": Bounds(short=True),
    "giant frames": Bounds(short=True),
    "connection flood": Bounds(),
    "TLS handshake flood": Bounds(),
    "half-open connections": Bounds(),
}

MEMBERS = {
    "junk acknowledgements": Bounds(short=True),
    "heavy disclosures": Bounds(short=True),
    "junk types": Bounds(),
    "endless questions": Bounds(throughput=_QUOTA),
    "reconnect loops": Bounds(),
    "a broker that vanishes": Bounds(short=True),
    "junk among policy": Bounds(short=True, newcomer=True),
}

FORGERS = {
    "policy that is swallowed": Bounds(),
    "a key ground to be the rendezvous": Bounds(short=True),
    "forged policy": Bounds(short=True),
    "replayed policy": Bounds(),
}

SUBSCRIBERS = {
    "narrow subscriptions": Bounds(short=True, throughput=_QUOTA),
    "overlapping subscriptions": Bounds(throughput=_QUOTA),
    "subscribing and unsubscribing": Bounds(short=True, throughput=_QUOTA),
    "long selectors": Bounds(throughput=_QUOTA),
}

#: brokers that have the rights of one; the others go on waiting for them when they are gone
TRAITORS = {
    # Routes move when a broker comes or goes, and what is under way then may be lost.
    "false heads": Bounds(lost=None, throughput=_QUOTA, stays=True),
    "a broker link that flaps": Bounds(lost=None, throughput=_QUOTA, stays=True),
}

LINKS = {**STRANGERS, **FORGERS, **SUBSCRIBERS, **MEMBERS, **TRAITORS}

FAULTS = {
    # Documented: what is on its way through a broker that dies is lost, and what neighbours cannot pass on.
    "kill -9 of a broker in the middle": Bounds(short=True, lost=None, throughput=0.0, pause=10.0, memory=200),
    "a clock that jumps ahead and is corrected": Bounds(short=True, throughput=0.0, pause=10.0),
}

NATS = {
    "empty messages to inboxes": Bounds(short=True),
    "unreadable messages": Bounds(),
    "repeated messages": Bounds(short=True),
    "litter on every subject": Bounds(),
    "forged messages": Bounds(),
    "subjects that are not UTF-8": Bounds(),
    # What was in a stream is gone with it, and what somebody else says is stored is not.
    "forged answers of JetStream": Bounds(short=True, lost=None, throughput=0.0, pause=30.0),
    "streams that are deleted": Bounds(short=True, lost=None, throughput=0.0, pause=30.0),
}
