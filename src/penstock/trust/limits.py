"""Bounds on certificates and signed statements.

A node file cannot set them: all brokers must draw the same conclusions from the same statements.
"""

from dataclasses import dataclass
from typing import Final

from penstock.codec.limits import CodecLimits

#: certificates in one chain
CHAIN_LENGTH: Final = 64
#: distinct grants kept for one principal
GRANTS_PER_PRINCIPAL: Final = 64
#: members of a threshold subject, names in a name chain
THRESHOLD_MEMBERS: Final = 64
NAME_LENGTH: Final = 16
#: members of one set in a tag
TAG_SET: Final = 4_096
#: versions of an event type that are followed backwards to check a change
TYPE_HISTORY: Final = 64
#: entries of an attribute list, and of a profile
MODERATOR_LIST: Final = 256

#: policy evolution: the highest number of an event, bytes of one event, its changes, events of one checkpoint
POLICY_NUMBER: Final = 10**15 - 1
POLICY_EVENT_BYTES: Final = 256 << 10
POLICY_CHANGES: Final = 4_096
POLICY_PARTS: Final = 256
#: milliseconds: the longest that a broker can go on without a newer time-stamp
STAMP_PERIOD: Final = 7 * 24 * 3_600_000

#: validity statements: bytes of one, certificates in it, milliseconds that a timed one covers at most, and URIs of an
#: on-line test
STATEMENT_BYTES: Final = 640 << 10
STATEMENT_CERTIFICATES: Final = 10_000
STATEMENT_PERIOD: Final = 366 * 24 * 3_600_000
STATEMENT_URIS: Final = 4

#: key groups: members of one, nodes that one message about an epoch renews, blocks of an epoch, milliseconds that an
#: epoch of label keys can last, and parts of a checkpoint
KEY_MEMBERS: Final = 65_536
KEY_NODES: Final = 1_024
KEY_BLOCKS: Final = 1 << 32
LABEL_LONGEST: Final = 60 * 24 * 3_600_000
KEY_CHECKPOINT_PARTS: Final = 512


@dataclass(frozen=True, kw_only=True)
class TrustLimits(CodecLimits):
    """Bounds on bags of certificates and on one owner's announcements, and on their bytes."""

    #: a bag of credentials, the longest chain in it, distinct grants kept for one principal, and comparisons of tags
    #: for one question about it (a fraction of a second)
    certificates: int = 10_000
    chain_length: int = CHAIN_LENGTH
    grants_per_principal: int = GRANTS_PER_PRINCIPAL
    chain_steps: int = 200_000
    #: members of one set in a tag
    tag_set: int = TAG_SET
    #: versions of an event type that are followed backwards to check a change
    type_history: int = TYPE_HISTORY
    #: one owner's policy: types, revoked certificates, agreements, and profiles
    policy_types: int = 10_000
    policy_revoked: int = 100_000
    policy_agreements: int = 64
    policy_profiles: int = 100_000
    #: validity statements that a verifier keeps: issuers, statements of one issuer and kind, and certificates that
    #: these list together; questions without an answer
    statement_issuers: int = 1_000
    statements_of_issuer: int = 8
    statement_certificates: int = 40_000
    statement_questions: int = 1_000


TRUST_LIMITS: Final = TrustLimits()
