"""The node file that `penstock up --example` prints: every key, with what it is for."""

from typing import Final

#: the name of a broker's file in a folder that `penstock init` has written
NODE_FILE: Final = "broker.toml"
EXAMPLE: Final = """\
# A broker of Penstock. Paths are relative to the folder of this file; what is commented out shows its default.

network = "london/London"       # owner/name; the owner is a principal (ed25519:…) or one of the names below
key = "broker.key"              # the broker's private key, as `penstock key new` makes it
listen = "127.0.0.1:7600"       # where clients and other brokers connect; port 0 takes any that is free
http = "127.0.0.1:7680"         # /health, /ready and /metrics; without it there are none
names = "names.toml"            # petnames, as `penstock name` keeps them, or a table

# Rights come from here alone: files, patterns, or folders. All signatures are verified.
credentials = ["certs/*.cert"]  # what the broker uses, and shows to everybody
types = ["types/"]              # signed event types that it serves

operators = ["operator"]        # who may ask for its state with `penstock net show`
# decisions = "decisions.jsonl" # the decision log: nothing is allowed that cannot be written there
# state = "state"               # a folder for what has to outlive the process
# zone = "UTC"                  # of `hour`, `minute` and `weekday` in conditions

# Other brokers, which are called until they answer. With a principal, it is that one and no other; with a principal
# and no address, it is called across the servers in [nats].
# [[peers]]
# address = "broker.example.org:7600"
# principal = "their-broker"

# NATS servers across which clients and brokers may reach this broker too. They are not trusted: sessions are sealed
# from end to end. Files: credentials, nkey, token_file, tls_ca, tls_cert, tls_key.
# [nats]
# servers = ["nats://127.0.0.1:4222"]
# credentials = "broker.creds"
# listen = true                 # false: only this broker uses them, to call others, or as its fabric

# What is between brokers: "routed", links of their own; or "nats", the servers in [nats], and then no peers. Whoever
# reaches the servers could read types that nobody seals: they do not cross them unless you say `unsafe`.
# [fabric]
# kind = "routed"
# plaintext = "unsafe"
# durable = 0                   # seconds for which events are kept for brokers that are away

# Which brokers carry the events of a type: "route-right", those that its owner gives the right to; or "open", all that
# may connect to the network, who then read every event.
[trust]
brokers = "route-right"
# stamps = "required"           # or "optional": a broker that is cut off goes on for owners without time-stamps
# skew = 1.0                    # seconds by which any two clocks of the network may differ

# Time-stamps that this broker signs for owners that grant it `stamp`, and for its own principal's types.
# [stamps]
# period = 30                   # seconds for which one is good: brokers that are cut off stop after that
# every = 10                    # seconds between two of them; a change of policy is stamped immediately

# [sealing]                     # events of sealed types are sealed together, which costs less
# linger = 0.002                # seconds for which one waits for others; 0 seals each client's message immediately
# events = 128                  # so many go without waiting
# algorithm = "aes-gcm"         # or "aes-gcm-siv", "aes-eax"
# padding = "none"              # hide lengths: by "powers" of two, or by few "sizes"

# A key manager that runs with this broker, for types of its own principal, and of owners who grant it `keys`.
# [keys]
# log = "file"                  # or "nats": a stream of the servers in [nats]
# folder = "state/keys"         # of a log in a folder, which replicas on one machine may share
# name = "keys"                 # of a log on NATS, which all replicas name alike
# copies = 1                    # servers that keep a log on NATS
# kek = "keys.kek"              # what keys lie under, of `penstock key new-kek`; or "env:NAME", "credential:NAME"
# replicas = ["other-broker"]   # other key managers that write to the same log
# epoch_seconds = 3600          # how long the key of an epoch is used
# epoch_blocks = 4294967296     # how many blocks may be sealed under it
# longest_seconds = 86400       # after which time nobody seals under it, if there is no new one

# [domains]                     # where principals and names are at home; decisions are recorded with it
# operator = "London"

# [policies]                    # what the domain says about its clients, besides certificates: XACML, or as text
# files = ["plates.policy"]     # each decides; several are combined by `apply`
# refer = ["shared/"]           # policies that they refer to
# apply = "deny-overrides"
# rights = "both"               # or "restrict", "alone", "either": see docs/how-to/write-policies-over-events.md
# owners = ["london"]           # whose types they are about; everybody's, unless they give rights by themselves

# [facts]                       # what conditions may ask for besides the time
# on_duty = true

# [guards]                      # predicates that rights name, by their Python functions
# within-zone = "package.module:function"

# [limits]                      # bounds, see docs/reference/node-file.md
# client_rate = 6_000_000
"""
