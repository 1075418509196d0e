"""Quality of service: eleven policies as one value, and whether an offer satisfies a request.

The policies are those of Table 3 of paper 4, and the lease by which readers learn that a writer is gone. A topic is
declared with the policies that it *offers*. A reader can *request* others. `agree` returns the policies that apply to
the reader, or refuses with a code that names the policy that cannot be met. It can be met if

    durability      the offered durability is at least the requested one
    history         the reader keeps at most as many samples for each key as the topic
    ownership       both are the same
    source_order    the offer is `by-source`, or the request is `by-arrival`
    reliability     the offer is `reliable`, or the request is `best-effort`
    time_filter     always: only readers have one
    deadline        the offered deadline is at most the requested one
    lifespan        always: the shorter one applies
    latency_budget  the offered budget is at most the requested one
    priority        always: each side has its own
    lease           the offered lease is at most the requested one

Durations are seconds; `FOREVER` means without limit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Final, Self

from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.fabric.limits import FABRIC_HISTORY

FOREVER: Final = math.inf
#: keep as many samples as the fabric's limits allow; further samples are refused, never dropped
KEEP_ALL: Final = 0


class Durability(Enum):
    """How long samples are kept for late readers."""

    VOLATILE = "volatile"  #: they are not kept
    TRANSIENT = "transient"  #: as long as the fabric runs
    PERSISTENT = "persistent"  #: also after all processes were restarted


class Ownership(Enum):
    """Who may write to a topic at one time."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


class Order(Enum):
    """Which clock orders the samples of a key."""

    BY_ARRIVAL = "by-arrival"
    BY_SOURCE = "by-source"


class Reliability(Enum):
    """Whether a sample is sent again until it is acknowledged."""

    BEST_EFFORT = "best-effort"
    RELIABLE = "reliable"


class Priority(Enum):
    """Which samples are sent first if some must wait."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


_DURABLE: Final = tuple(Durability)
#: the code of the refusal, by policy
CODES: Final[Mapping[str, str]] = {
    "durability": "fabric.qos.durability",
    "history": "fabric.qos.history",
    "ownership": "fabric.qos.ownership",
    "source_order": "fabric.qos.source-order",
    "reliability": "fabric.qos.reliability",
    "time_filter": "fabric.qos.time-filter",
    "deadline": "fabric.qos.deadline",
    "lifespan": "fabric.qos.lifespan",
    "latency_budget": "fabric.qos.latency-budget",
    "priority": "fabric.qos.priority",
    "lease": "fabric.qos.lease",
}
_DURATIONS: Final = ("time_filter", "deadline", "lifespan", "latency_budget", "lease")


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """All eleven policies. `history` is how many samples of each key are kept, or `KEEP_ALL`.

    A writer counts as gone for a reader that got neither a sample nor `Publisher.alive` from it for `lease` seconds.

    Raises `MalformedError` (`fabric.qos.value`) for a value that a policy cannot have.

    >>> Qos(durability=Durability.PERSISTENT, history=1).history
    1
    """

    durability: Durability = Durability.VOLATILE
    history: int = 1_000
    ownership: Ownership = Ownership.SHARED
    source_order: Order = Order.BY_ARRIVAL
    reliability: Reliability = Reliability.BEST_EFFORT
    time_filter: float = 0.0
    deadline: float = FOREVER
    lifespan: float = FOREVER
    latency_budget: float = FOREVER
    priority: Priority = Priority.NORMAL
    lease: float = FOREVER

    def __post_init__(self) -> None:
        kinds = {"durability": Durability, "ownership": Ownership, "source_order": Order}
        kinds |= {"reliability": Reliability, "priority": Priority}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise _wrong(name, getattr(self, name), f"one of {', '.join(_words(kind))}")
        if type(self.history) is not int or not 0 <= self.history <= FABRIC_HISTORY:
            raise _wrong("history", self.history, f"`KEEP_ALL` or 1 to {FABRIC_HISTORY}")
        for name in _DURATIONS:
            value = getattr(self, name)
            if type(value) not in (int, float) or math.isnan(value) or value < 0:
                raise _wrong(name, value, "seconds, 0 or more")
        for name in ("deadline", "lifespan", "lease"):
            if getattr(self, name) == 0:
                raise _wrong(name, 0, "seconds, more than 0")
        if self.time_filter > self.deadline or self.time_filter == FOREVER:
            raise _wrong("time_filter", self.time_filter, "a number of seconds not above the deadline")
        if self.history == KEEP_ALL and not self.reliable:
            raise _wrong("history", "keep-all", "a number, or reliability `reliable`")

    @property
    def reliable(self) -> bool:
        """Whether samples are sent again until they are acknowledged."""
        return self.reliability is Reliability.RELIABLE

    @property
    def durable(self) -> bool:
        """Whether samples are kept for readers that join late."""
        return self.durability is not Durability.VOLATILE

    def as_dict(self) -> dict[str, str | int | float | None]:
        """Return the policies as plain data: names, numbers, and None for `FOREVER`; `lease` only if there is one."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        if self.lease == FOREVER:
            del plain["lease"]  # topics that were stored before there were leases read the same
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `as_dict` wrote. Raises `MalformedError` (`fabric.qos.value`)."""
        data = {"lease": None, **data}
        if set(data) != set(CODES):
            raise _wrong("policies", ", ".join(sorted(map(str, data))), f"all of {', '.join(CODES)}, and no other")
        kinds = {"durability": Durability, "ownership": Ownership, "source_order": Order}
        kinds |= {"reliability": Reliability, "priority": Priority}
        values: dict[str, Any] = dict(data)
        for name, kind in kinds.items():
            if values[name] not in _words(kind):
                wrong = _wrong(name, values[name], f"one of {', '.join(_words(kind))}")
                wrong.hint = did_you_mean(str(values[name]), _words(kind), wrong.hint)
                raise wrong
            values[name] = kind(values[name])
        for name in _DURATIONS:
            values[name] = FOREVER if values[name] is None else values[name]
        return cls(**values)


def agree(offered: Qos, requested: Qos) -> Qos:
    """Return the policies that apply to a reader.

    Raises `RefusedError` with the code of the first policy that cannot be met (`CODES`); the fields say what was
    offered and requested, and the hint what is possible.
    """
    if _DURABLE.index(requested.durability) > _DURABLE.index(offered.durability):
        raise refuse("durability", offered, requested, f"request at most `{offered.durability.value}`")
    if offered.history != KEEP_ALL and (requested.history == KEEP_ALL or requested.history > offered.history):
        raise refuse("history", offered, requested, f"request at most {offered.history} samples a key")
    if requested.ownership is not offered.ownership:
        raise refuse("ownership", offered, requested, f"request `{offered.ownership.value}`")
    if requested.source_order is Order.BY_SOURCE and offered.source_order is not Order.BY_SOURCE:
        raise refuse("source_order", offered, requested, "request `by-arrival`")
    if requested.reliable and not offered.reliable:
        raise refuse("reliability", offered, requested, "request `best-effort`")
    if requested.deadline < offered.deadline:
        raise refuse("deadline", offered, requested, f"request {offered.deadline} seconds or more")
    if requested.latency_budget < offered.latency_budget:
        raise refuse("latency_budget", offered, requested, f"request {offered.latency_budget} seconds or more")
    if requested.lease < offered.lease:
        raise refuse("lease", offered, requested, f"request {offered.lease} seconds or more")
    return replace(requested, lifespan=min(offered.lifespan, requested.lifespan))


def check_offer(qos: Qos) -> None:
    """Check that a topic has no time filter, which only readers can have. Raises `RefusedError` (`CODES`)."""
    if qos.time_filter:
        raise RefusedError(
            CODES["time_filter"],
            "a topic cannot have a time filter",
            hint="declare it with 0, and let each reader request its own",
            policy="time_filter",
        )


def refuse(policy: str, offered: Qos, requested: Qos, possible: str) -> RefusedError:
    """Return the refusal for a policy that cannot be met."""
    has, wants = (_word(policy, qos) for qos in (offered, requested))
    return RefusedError(
        CODES[policy],
        f"{policy.replace('_', ' ')} `{wants}` is requested and `{has}` offered",
        hint=possible,
        policy=policy,
        offered=has,
        requested=wants,
    )


def _word(policy: str, qos: Qos) -> str:
    value = _plain(getattr(qos, policy))
    if policy == "history" and value == KEEP_ALL:
        return "keep-all"
    return "forever" if value is None else str(value)


def _plain(value: Enum | float) -> str | int | float | None:
    if isinstance(value, Enum):
        return str(value.value)
    return None if value == FOREVER else value


def _words(kind: type[Enum]) -> list[str]:
    return [str(member.value) for member in kind]


def _wrong(policy: str, value: object, possible: str) -> MalformedError:
    return MalformedError(
        "fabric.qos.value", f"{policy.replace('_', ' ')} cannot be `{value}`", hint=f"give {possible}", policy=policy
    )
