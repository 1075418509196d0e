"""Bounds on a broker. A node file can set each field of `BrokerLimits`; constants are the same in all brokers.

No code but that which reads node files, and clients, makes a `BrokerLimits`: everything else is handed the one that
its node was configured with. `tests/apps/node/test_limits.py` checks both.
"""

from dataclasses import dataclass, field
from typing import Final

from penstock.codec.limits import CODEC_LIMITS, ROUTE_BLOCK_BYTES, ROUTE_BLOCK_EVENTS, CodecLimits
from penstock.model.limits import CACHE_ENTRIES
from penstock.trust.limits import KEY_BLOCKS, KEY_CHECKPOINT_PARTS, KEY_MEMBERS

#: links of one broker, and bytes of the proof of an announcement and of what a broker discloses
NETWORK_LINKS: Final = 256
NETWORK_PROOF: Final = 1_024
NETWORK_DISCLOSURE: Final = 256 << 10
#: a sealed filter: its parts, and bytes of the content of one
FILTER_PARTS: Final = 16
FILTER_BYTES: Final = 4_096
#: filters that are kept after they were read or compared, and the characters of one: those that come and go must not
#: fill the memory
FILTER_CACHE: Final = 1_024
FILTER_CACHE_LENGTH: Final = 512
#: characters of the name of a slot for retained events
ROUTE_SLOT_LENGTH: Final = 128

#: key of a field's metadata: the highest value, which is what other brokers accept
MOST: Final = "most"


def _at_most(most: int) -> int:
    """Declare a limit that can be lowered only, because other brokers refuse more."""
    return field(default=most, metadata={MOST: most})


@dataclass(frozen=True, kw_only=True)
class BrokerLimits:
    """Bounds on one broker. Sizes are in bytes, times in milliseconds."""

    #: bounds on encoded input; not set by node files, because they are the same in all brokers
    codec: CodecLimits = CODEC_LIMITS

    #: TLS and the handshake: time for both together, peers that are not admitted yet, TLS handshakes that begin in a
    #: second
    handshake_time: int = 5_000
    handshake_pending: int = 256
    handshake_rate: int = 100
    #: the first message of a peer: bytes, and bytes of all peers that are not admitted yet
    hello_bytes: int = 320 << 10
    hello_all_bytes: int = 16 << 20
    #: credentials of a peer: bytes of a certificate, and atoms and lists in it
    certificate_bytes: int = 128 << 10
    certificate_nodes: int = 16_384
    #: units of work (one for each byte that is read) for one bag of a stranger, for those of all strangers in a second,
    #: and in one burst
    hello_work: int = 500_000
    stranger_work: int = 200_000
    stranger_burst: int = 200_000
    #: the same for one bag of an admitted principal, and for all its bags
    disclosure_work: int = 4_000_000
    member_work: int = 200_000
    member_burst: int = 1_000_000
    #: hellos and disclosures of one principal in a second, and in one burst: its rights are decided and recorded each
    #: time; and how long one can wait for its turn (less than `handshake_time`, for which brokers wait to be admitted)
    admission_rate: int = 2
    admission_burst: int = 100
    admission_wait: int = 4_000
    #: refusals of strangers: the period, how many are recorded in it, and how many with one code are reported
    refusal_period: int = 60_000
    refusal_records: int = 60
    refusal_reports: int = 20

    #: links of one listener; bytes that wait on a link to be sent, and to be handled, before one side is slowed or cut;
    #: bytes that the system keeps in between in each direction: urgent messages cannot overtake these
    links: int = 4_096
    link_outbox: int = 8 << 20
    link_inbox: int = 256 << 10
    link_buffer: int = 256 << 10
    #: a link: silence before a keep-alive, silence before it is cut, time that a peer can leave everything unread, time
    #: for a goodbye, and keep-alives that a peer can send in the time of one
    link_keepalive: int = 10_000
    link_idle: int = 30_000
    link_stall: int = 10_000
    link_goodbye: int = 2_000
    link_keepalives: int = 64

    #: a network: brokers, links of this one, bytes that this one discloses, brokers that wait to be admitted, brokers
    #: that an event passes, and events that wait for a fabric
    network_brokers: int = 4_096
    network_links: int = _at_most(NETWORK_LINKS)
    network_disclosure: int = _at_most(NETWORK_DISCLOSURE)
    network_waiting: int = 256
    network_hops: int = 255
    network_outbox: int = 65_536

    #: entries of one neighbour
    route_entries: int = 1_000_000
    #: filters on one type that one neighbour is sent; beyond that, it is asked for everything of the type
    route_filters: int = 4_096
    #: how long a client waits for the confirmation that the paths of its subscription are established
    route_confirm: int = 5_000
    #: streams of events (an origin and a type) that are distinguished, and how many events late a copy can come
    route_streams: int = 65_536
    route_window: int = 1_024
    #: events that travel together, and their bytes
    route_block_events: int = _at_most(ROUTE_BLOCK_EVENTS)
    route_block_bytes: int = _at_most(ROUTE_BLOCK_BYTES)
    #: retained events: of one type, in all, and bytes of all
    route_retained: int = 1_024
    route_retained_all: int = 65_536
    route_retained_bytes: int = 64 << 20

    #: a sealed filter: its parts, and bytes of the content of one
    filter_parts: int = _at_most(FILTER_PARTS)
    filter_bytes: int = _at_most(FILTER_BYTES)
    #: sets of epochs for which an index of sealed filters is kept, and sealed filters that are kept after they were
    #: sealed, opened or read
    filter_indexes: int = 4
    filter_cache: int = FILTER_CACHE
    #: filters of clients that are sealed under a new key before others have their turn
    filter_sealings: int = 64

    #: sealed blocks that wait at a broker for their keys, and their bytes; the oldest give way
    seal_waiting: int = 1_024
    seal_waiting_bytes: int = 64 << 20
    #: how long ago a block that arrives can have been sealed, and how many blocks are remembered to recognise copies
    seal_window: int = 300_000
    seal_replays: int = 1 << 18
    #: events that wait at their publisher's broker because they cannot be sealed yet, and roughly their bytes; and
    #: bytes of those that linger to be sealed in one block
    seal_held: int = 65_536
    seal_held_bytes: int = 64 << 20
    seal_gather_bytes: int = 64 << 10
    #: streams (sender, incarnation, epochs, type) whose derived keys are remembered
    seal_streams: int = 1_024

    #: one principal at this broker: sessions; subscriptions and advertisements in all of them
    client_sessions: int = 64
    client_subscriptions: int = 10_000
    client_advertisements: int = 1_000
    #: different filters on one type that the network is sent for one principal; beyond that, everything of the type is
    #: requested instead, and this broker filters it
    client_filters: int = 256
    #: bytes of the values in an event, events in a minute, and certificates that a session discloses
    client_event_bytes: int = 256 << 10
    client_rate: int = 6_000_000
    client_certificates: int = 1_000
    #: requests of one principal except publications: in a second, and in one burst; beyond that, its links wait
    client_requests: int = 500
    client_requests_burst: int = 5_000
    #: processor time for requests of one principal: in a second, and in one burst; a large selector is much work
    client_work: int = 250
    client_work_burst: int = 2_000
    #: subscriptions and advertisements of one principal that begin or end: in a second, and in one burst; other brokers
    #: have to handle each of them
    client_changes: int = 100
    client_changes_burst: int = 1_000
    #: types that the broker serves
    broker_types: int = 10_000

    #: one owner's policy: bytes of its events since the last checkpoint, and bytes of those that wait
    policy_log_bytes: int = 6 << 20
    policy_pending_bytes: int = 8 << 20
    #: owners whose policy is kept, acknowledgements of one broker that are remembered, and principals that sign
    #: time-stamps for one owner
    policy_owners: int = 4_096
    policy_acknowledgements: int = 1_024
    policy_stampers: int = 16
    #: how often a broker that is behind asks again
    policy_retry: int = 5_000
    #: policy between neighbours: time between two comparisons of heads, time after which another neighbour is asked,
    #: time in which a neighbour must say what it knows and prove it, bytes of one answer, and answers to one neighbour
    #: between two comparisons
    policy_heads: int = 2_000
    policy_answer: int = 1_000
    policy_proof: int = 10_000
    policy_chunk_bytes: int = 128 << 10
    policy_answers: int = 1_024

    #: validity statements: how long a client waits at its hello for those that its certificates need
    statement_wait: int = 2_000

    #: key groups: members of one, and brokers that one record admits, releases or evicts; nodes that one message about
    #: an epoch renews, epochs that wait for an earlier one, and epochs whose keys one answer holds
    key_members: int = _at_most(KEY_MEMBERS)
    key_changes: int = 2_048
    key_nodes: int = 1_024
    key_waiting: int = 16
    key_history: int = 4_096
    #: an epoch: time or number of blocks after which the next begins, how long it can last, how long its key opens what
    #: is still under way, and how soon a member can ask for the next
    key_epoch: int = 3_600_000
    key_blocks: int = _at_most(KEY_BLOCKS)
    key_longest: int = 24 * 3_600_000
    key_grace: int = 60_000
    key_refresh: int = 60_000
    #: the key of a blinded type's labels: time after which the next begins, and how long the old and the new labels are
    #: both in use
    label_epoch: int = 30 * 24 * 3_600_000
    label_overlap: int = 600_000
    #: how old a request can be, how often one without an answer is repeated, and how often managers announce the epoch
    key_request: int = 60_000
    key_retry: int = 5_000
    key_notice: int = 30_000
    #: clients that can wait for keys of old epochs, and how long for an answer
    key_fetching: int = 64
    key_answer: int = 10_000
    #: the log of key managers: how often one reads what others wrote, records after which a checkpoint is written,
    #: bytes of one part of it, and parts
    key_follow: int = 1_000
    key_log: int = 8_192
    key_checkpoint_bytes: int = 512 << 10
    key_checkpoint_parts: int = _at_most(KEY_CHECKPOINT_PARTS)

    #: clauses into which one selector is cut for matching; an OR with more is tried as a whole
    matching_clauses: int = 16
    #: a subscription that is added: others that are compared with it, questions to the algebra, and parts of a merged
    #: one
    coverage_comparisons: int = 512
    coverage_questions: int = 4
    coverage_merged: int = 16

    #: entries of each cache of the broker
    cache_entries: int = CACHE_ENTRIES
