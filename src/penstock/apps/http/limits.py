"""Bounds on the decision service. No file sets them."""

from dataclasses import dataclass
from typing import Final

from penstock.policy.limits import PolicyLimits

#: bytes of the head of an HTTP request
HTTP_BYTES: Final = 8_192


@dataclass(frozen=True, kw_only=True)
class ServiceLimits(PolicyLimits):
    """Bounds on questions to the decision service, and on its policies. Times are in milliseconds."""

    #: a question: bytes, time to send it or to fetch the answer and for all its decisions; decisions in it
    pdp_bytes: int = 1 << 20
    pdp_time: int = 5_000
    pdp_evaluations: int = 1_000
    #: how long a connection can be idle, and simultaneous connections
    pdp_idle: int = 75_000
    pdp_connections: int = 1_024
    #: entities of a bundle, which searches go through
    pdp_entities: int = 100_000
    #: answers that are kept, and bytes of a question with its answer among them
    pdp_kept: int = 2_048
    pdp_kept_bytes: int = 4_096


SERVICE_LIMITS: Final = ServiceLimits()
