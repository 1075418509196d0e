"""Every bound that hostile input meets, in one place.

The defaults are generous for honest use and small enough that refusing costs little.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what Penstock reads. Sizes in bytes, times in milliseconds."""

    #: an S-expression: bytes, nesting, and atoms plus lists
    sexp_bytes: int = 1 << 20
    sexp_depth: int = 64
    sexp_nodes: int = 65_536
    #: a file of several S-expressions: bytes, and values in it
    file_bytes: int = 16 << 20
    file_values: int = 65_536

    #: an XML document: bytes, and elements in it
    xml_bytes: int = 16 << 20
    xml_nodes: int = 1_000_000
    #: a policy: nesting; a pattern and a text that is matched, texts and integers that are made, days from the year 0
    policy_depth: int = 64
    policy_pattern: int = 1_000
    policy_matched: int = 10_000
    policy_text: int = 1 << 20
    policy_integer_bits: int = 4_096
    policy_days: int = 1 << 40
    #: steps of a pattern on a text, where its ways to match are many; steps of a path of XPath
    policy_matching: int = 1_000_000
    policy_path: int = 5_000_000
    #: calls of the function that one of those takes which take functions
    policy_calls: int = 1_000_000
    #: requests that are in one, and that a policy asks because of one, all in all; resources above and below one
    policy_requests: int = 10_000
    policy_nested: int = 32
    policy_resources: int = 100_000
    #: an expression over decisions: states of its automaton
    policy_states: int = 1_000
    #: requests that are decided together: what is remembered of them
    policy_remembered: int = 16_000_000
    #: what is left of a policy for events: steps to find it, values of an attribute that are tried, cases of it, and
    #: how many of what is left are kept
    residual_steps: int = 250_000
    residual_values: int = 64
    residual_cases: int = 64
    residual_kept: int = 4_096

    #: a selector: characters, nesting, nodes of its syntax tree, values in one IN list
    selector_length: int = 16_384
    selector_depth: int = 64
    selector_nodes: int = 4_096
    #: the solver: wall time and z3's own deterministic resource count
    solver_time: int = 2_000
    solver_effort: int = 20_000_000

    #: a bag of credentials, the longest chain in it, and distinct grants kept for one principal
    certificates: int = 10_000
    chain_length: int = 64
    grants_per_principal: int = 64
    #: members of a threshold subject, names in a name chain
    threshold_members: int = 64
    name_length: int = 16

    #: a tag: nesting, members of one set, those of them that are not plain, patterns in one conjunction
    tag_depth: int = 32
    tag_set: int = 4_096
    tag_set_complex: int = 128
    tag_and: int = 64
    #: the longest glob (one byte at least is a `*`, so at most 255 of 256 can occur), and the longest number or date
    tag_glob: int = 256
    tag_value: int = 128
    #: comparisons that intersecting two tags or asking for coverage may take, and those of all tags together for one
    #: question about a bag: a fraction of a second
    tag_steps: int = 100_000
    chain_steps: int = 200_000

    #: an event type: attributes, name length, and versions followed backwards to check a change
    type_attributes: int = 1_024
    type_name_length: int = 256
    type_history: int = 64
    type_depth: int = 32

    #: a record of a decision log, publishers that one batch of a job records, and hours of a period of a report on them
    record_bytes: int = 1 << 20
    record_principals: int = 10_000
    record_hours: int = 87_840
    #: files, or batches of the job before, that one batch of a stream takes
    batch_files: int = 1_000_000
    #: Parquet files that are asked for their columns at once
    table_files: int = 100_000

    #: a policy file: bytes, files that it names, subscribers, and the length of a subscriber's name
    policy_bytes: int = 16 << 20
    policy_files: int = 10_000
    policy_subscribers: int = 100_000
    policy_name_length: int = 128

    #: a frame of a link: bytes, and messages in it; a message: nesting, and items of one list or map
    frame_bytes: int = 1 << 20
    frame_messages: int = 4_096
    wire_depth: int = 16
    wire_items: int = 8_192
    #: a message of the handshake, the time that TLS and the handshake may take, peers at once that were not let in
    #: yet, and TLS handshakes that begin in a second
    handshake_bytes: int = 1_024
    handshake_time: int = 5_000
    handshake_pending: int = 256
    handshake_rate: int = 100
    #: what a peer says first: bytes, and bytes of all peers that are not let in yet
    hello_bytes: int = 320 << 10
    hello_all_bytes: int = 16 << 20
    #: credentials that a peer shows: bytes of a certificate, and atoms and lists in it; units of work (a byte that is
    #: read is one) for a stranger's bag, for all strangers in a second and at once; the same for a bag of who may
    #: connect, and for all bags of one principal
    certificate_bytes: int = 128 << 10
    certificate_nodes: int = 16_384
    hello_work: int = 500_000
    stranger_work: int = 200_000
    stranger_burst: int = 200_000
    disclosure_work: int = 4_000_000
    member_work: int = 200_000
    member_burst: int = 1_000_000
    #: hellos and disclosures of one principal in a second, and at once: its rights are decided and recorded each time;
    #: and how long one may wait for its turn (less than `handshake_time`, for which brokers wait to be let in)
    admission_rate: int = 2
    admission_burst: int = 100
    admission_wait: int = 4_000
    #: refusals of strangers: the period in which so many of them are recorded, and so many of one code reported
    refusal_period: int = 60_000
    refusal_records: int = 60
    refusal_reports: int = 20
    #: links of one listener; bytes that wait on a link to be sent, and to be taken, before one side is slowed or cut;
    #: bytes that the system keeps in between, each way: urgent messages cannot overtake these
    links: int = 4_096
    link_outbox: int = 8 << 20
    link_inbox: int = 256 << 10
    link_buffer: int = 256 << 10
    #: a link: silence before a keep-alive, silence before it is cut, time that a peer may leave everything unread, time
    #: that a goodbye may take, and keep-alives that a peer may send in the time of one
    link_keepalive: int = 10_000
    link_idle: int = 30_000
    link_stall: int = 10_000
    link_goodbye: int = 2_000
    link_keepalives: int = 64

    #: a network: brokers, links of one of them, bytes of an announcement's proof, bytes that a broker discloses,
    #: brokers that wait to be admitted, brokers an event passes, and events that wait for a fabric
    network_brokers: int = 4_096
    network_links: int = 256
    network_proof: int = 1_024
    network_disclosure: int = 256 << 10
    network_waiting: int = 256
    network_hops: int = 255
    network_outbox: int = 65_536
    #: what one neighbour may enter; streams of events (an origin and a type) told apart, and how late a copy may come
    route_entries: int = 1_000_000
    #: filters on one type that one neighbour is told; beyond, it is told that everything of the type is wanted
    route_filters: int = 4_096
    #: how long a client waits until it is confirmed that the paths of its subscription are laid
    route_confirm: int = 5_000
    route_streams: int = 65_536
    route_window: int = 1_024
    #: a sealed filter: its parts, bytes of the content of one; and sets of epochs that an index of filters is kept for
    filter_parts: int = 16
    filter_bytes: int = 4_096
    filter_indexes: int = 4
    #: filters that are remembered after they were read or compared, and the characters of one: those that come and go
    #: are not to fill the memory
    filter_cache: int = 1_024
    filter_cache_length: int = 512
    #: filters of clients that are sealed under a new key before others have their turn
    filter_sealings: int = 64
    #: sealed blocks that wait at a broker for their keys, and their bytes; the oldest give way
    seal_waiting: int = 1_024
    seal_waiting_bytes: int = 64 << 20
    #: how long ago a block may have been sealed that arrives, and how many blocks are remembered to tell copies
    seal_window: int = 300_000
    seal_replays: int = 1 << 18
    #: refused blocks that a node keeps, and their bytes; the oldest of who sent most give way
    quarantine_blocks: int = 4_096
    quarantine_bytes: int = 256 << 20
    #: events that wait at their publisher's broker, because they cannot be sealed yet, and their bytes, roughly; and
    #: of those that linger to be sealed in one block
    seal_held: int = 65_536
    seal_held_bytes: int = 64 << 20
    seal_gather_bytes: int = 64 << 10
    #: events that travel together, and their bytes: less than a frame, because numbers may take more when written again
    route_block_events: int = 1_024
    route_block_bytes: int = 512 << 10
    #: retained events: of one type, in all, bytes of all, and the length of a slot's name
    route_retained: int = 1_024
    route_retained_all: int = 65_536
    route_retained_bytes: int = 64 << 20
    route_slot_length: int = 128

    #: a sample on the fabric: bytes of its data, of its key, of all its headers
    fabric_bytes: int = 512 << 10
    fabric_key_bytes: int = 128
    fabric_header_bytes: int = 16_384
    #: a topic: length of its name, samples it keeps, keys a reader remembers; samples that wait for one reader, and
    #: requests that one service answers at a time
    fabric_name_length: int = 128
    fabric_history: int = 100_000
    fabric_keys: int = 10_000
    fabric_pending: int = 10_000
    fabric_requests: int = 1_000

    #: one principal at one broker: sessions, subscriptions and advertisements in all of them, bytes of values in an
    #: event, events in a minute, and certificates that a session discloses
    client_sessions: int = 64
    client_subscriptions: int = 10_000
    #: different filters on one type that the network is told for one principal; beyond, everything of the type is asked
    #: for in their place, and its broker picks out what was meant
    client_filters: int = 256
    client_advertisements: int = 1_000
    client_event_bytes: int = 256 << 10
    client_rate: int = 6_000_000
    client_certificates: int = 1_000
    #: requests of one principal in a second, publications apart, and how many at once; the links of who asks more wait
    client_requests: int = 500
    client_requests_burst: int = 5_000
    #: time that requests of one principal may take a broker in a second, and at once: a large selector is much work
    client_work: int = 250
    client_work_burst: int = 2_000
    #: subscriptions and advertisements of one principal that begin or end in a second, and at once: other brokers have
    #: to do with each of them
    client_changes: int = 100
    client_changes_burst: int = 1_000
    #: a broker: types it serves, and different views of one subscription that its filter tells apart
    broker_types: int = 10_000
    broker_views: int = 3

    #: what a node tells over HTTP: bytes of a request, time for one, and connections at once; lines that it logs in a
    #: second, since whoever is refused often must not fill a disk
    http_bytes: int = 8_192
    http_time: int = 5_000
    http_connections: int = 64
    log_lines: int = 200
    #: the decision service: bytes of a question, time to send one, or to fetch the answer, and for all decisions of
    #: one; how long a connection may rest, and connections at once; decisions in one question; entities of a bundle,
    #: which searches go through; answers that are kept, and bytes of a question with its answer among them
    pdp_bytes: int = 1 << 20
    pdp_time: int = 5_000
    pdp_idle: int = 75_000
    pdp_connections: int = 1_024
    pdp_evaluations: int = 1_000
    pdp_entities: int = 100_000
    pdp_kept: int = 2_048
    pdp_kept_bytes: int = 4_096
    #: properties within properties, and the characters of the names that they get by that
    pdp_depth: int = 8
    pdp_name: int = 1_000

    #: policy evolution: the highest number of an event, bytes of one event, its changes, events of one checkpoint;
    #: certificates that one owner has revoked, its agreements, and profiles; branches by which somebody has what was
    #: agreed on; bytes of the events since the last checkpoint, and of those that wait
    policy_number: int = 10**15 - 1
    policy_event_bytes: int = 256 << 10
    policy_changes: int = 4_096
    policy_parts: int = 256
    policy_revoked: int = 100_000
    policy_agreements: int = 64
    policy_profiles: int = 100_000
    agreed_branches: int = 1_024
    policy_log_bytes: int = 6 << 20
    policy_pending_bytes: int = 8 << 20
    #: owners whose policy a broker keeps, acknowledgements of one broker that are remembered, who signs time-stamps for
    #: one owner, the longest that a broker may go on without a newer time-stamp, and how often one that is behind asks
    #: again
    policy_owners: int = 4_096
    policy_acknowledgements: int = 1_024
    policy_stampers: int = 16
    stamp_period: int = 7 * 24 * 3_600_000
    policy_retry: int = 5_000
    #: policy between neighbours: time between two comparisons of heads, time after which another neighbour is asked,
    #: time in which a neighbour must say what it knows and prove it, bytes of one answer, and answers to one neighbour
    #: between two comparisons
    policy_heads: int = 2_000
    policy_answer: int = 1_000
    policy_proof: int = 10_000
    policy_chunk_bytes: int = 128 << 10
    policy_answers: int = 1_024

    #: key groups: members of one, and brokers that one record admits, lets go or evicts; nodes that one message about
    #: an epoch renews, and epochs that wait for an earlier one; epochs whose keys one answer holds
    key_members: int = 65_536
    key_changes: int = 2_048
    key_nodes: int = 1_024
    key_waiting: int = 16
    key_history: int = 4_096
    #: an epoch: after which time or number of blocks the next begins, how long it can last at most, how long its key
    #: opens what is still under way, and how soon a member may ask for the next
    key_epoch: int = 3_600_000
    key_blocks: int = 1 << 32
    key_longest: int = 24 * 3_600_000
    key_grace: int = 60_000
    key_refresh: int = 60_000
    #: the key of a blinded type's labels: after which time the next begins, how long it can last at most, and for how
    #: long the old and the new labels are both in use
    label_epoch: int = 30 * 24 * 3_600_000
    label_longest: int = 60 * 24 * 3_600_000
    label_overlap: int = 600_000
    #: how old a request may be, how often one that is not answered is repeated, and how often managers tell the epoch
    key_request: int = 60_000
    key_retry: int = 5_000
    key_notice: int = 30_000
    #: clients that may wait for keys of old epochs at one broker, and how long for an answer
    key_fetching: int = 64
    key_answer: int = 10_000
    #: the log of key managers: how often one reads what others wrote, after how many records a checkpoint is written,
    #: bytes of one part of it, and parts
    key_follow: int = 1_000
    key_log: int = 8_192
    key_checkpoint_bytes: int = 512 << 10
    key_checkpoint_parts: int = 512
    #: a file of keys: bytes
    key_ring_bytes: int = 64 << 20

    #: clauses that one selector is cut into for matching; an OR with more is tried as a whole
    matching_clauses: int = 16
    #: a subscription that is added: others compared with it in vain, those by algebra, and parts of a merged one
    coverage_comparisons: int = 512
    coverage_questions: int = 4
    coverage_merged: int = 16

    #: a rule of the moderator: length of its id, publishers that it is of, entries of an attribute list; answers about
    #: pairs of functions that a detector remembers, functions that are not read again, and steps that are kept in mind
    #: (others are read again when one of them is to be undone); a signed request: seconds between its time and the
    #: moderator's clock, and how often it is planned again because others were quicker; seconds that pass between two
    #: steps without the moderator's word; wall time of the solver for rules of a log, where only its own count may
    #: decide whether it finds an answer
    moderator_id_length: int = 128
    moderator_publishers: int = 1_024
    moderator_list: int = 256
    moderator_answers: int = 65_536
    moderator_functions: int = 4_096
    moderator_steps: int = 10_000
    #: steps of a rule book after which a snapshot is kept: as many as a command replays while it starts anyway
    moderator_snapshot_every: int = 100
    moderator_request_age: int = 86_400
    moderator_attempts: int = 64
    moderator_leap: int = 366 * 86_400
    moderator_patience: int = 60_000
    #: a poll: publishers that are asked, and votes of one of them; the longest time until its deadline, and that for
    #: which consents hold afterwards, in seconds
    poll_voters: int = 128
    poll_votes: int = 16
    poll_longest: int = 30 * 86_400
    poll_consent: int = 86_400

    #: a text in YAML: characters, levels of nesting, values
    yaml_length: int = 64 << 20
    yaml_depth: int = 32
    yaml_nodes: int = 4_000_000

    #: a change that is kept: length of its ledger's name, of its kind and of its reason, bytes before and after;
    #: changes that are added at once, and read at once; bytes of a snapshot, and changes after which one is taken; how
    #: long a writer waits for others
    store_name_length: int = 128
    store_kind_length: int = 64
    store_why_length: int = 4_096
    store_value_bytes: int = 512 << 10
    store_batch: int = 10_000
    store_page: int = 500
    store_snapshot_bytes: int = 512 << 20
    store_snapshot_every: int = 10_000
    store_wait: int = 30_000

    #: a sealed block: bytes, rows, values (rows times columns), bytes of the names in its header
    block_bytes: int = 64 << 20
    block_rows: int = 1 << 20
    block_cells: int = 1 << 22
    block_names: int = 256 << 10
    #: one incarnation of a sealer: blocks, and bytes of them; less than AES-GCM is good for (ADR 17)
    seal_blocks: int = 1 << 32
    seal_bytes: int = 1 << 36
    #: streams (sender, incarnation, epochs, type) whose derived keys are remembered
    seal_streams: int = 1_024

    #: entries of a verification cache
    cache_entries: int = 10_000


DEFAULT_LIMITS: Final = Limits()


def wide(size: int) -> Limits:
    """Return limits for bytes of one's own, of which there may be many: their size was bounded when they were kept."""
    return _wide(size.bit_length())


@cache
def _wide(bits: int) -> Limits:
    return replace(DEFAULT_LIMITS, sexp_bytes=1 << bits, sexp_nodes=1 << bits)
