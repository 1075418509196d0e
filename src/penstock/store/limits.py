"""Bounds on ledgers and files. A node file cannot set them: ledgers are shared."""

from dataclasses import dataclass
from typing import Final

from penstock.trust.limits import TrustLimits

#: characters of a name in a file, such as the name of a subscriber or a domain
POLICY_NAME_LENGTH: Final = 128


@dataclass(frozen=True, kw_only=True)
class StoreLimits(TrustLimits):
    """Bounds on changes, snapshots and files, and on the certificates in them. Times are in milliseconds."""

    #: a change: length of its ledger's name, of its kind and of its reason, bytes before and after (the largest
    #: validity statement must fit, or a domain that has revoked many certificates could revoke no more)
    store_name_length: int = 128
    store_kind_length: int = 64
    store_why_length: int = 4_096
    store_value_bytes: int = 1 << 20
    #: changes that are added in one batch, and read in one page
    store_batch: int = 10_000
    store_page: int = 500
    #: a snapshot: bytes, and changes after which one is taken
    store_snapshot_bytes: int = 512 << 20
    store_snapshot_every: int = 10_000
    #: how long a writer waits for others
    store_wait: int = 30_000
    #: files that one file names
    policy_files: int = 10_000
    #: bytes of a file of keys
    key_ring_bytes: int = 64 << 20


STORE_LIMITS: Final = StoreLimits()
