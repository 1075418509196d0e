"""Worlds: parts of the real system that a simulation starts, gives work to, and checks.

- `world` says what a world is.
- `components`: PAPs, PEPs, PDPs and PIPs of one domain.
- `brokers`: brokers and their clients, where requests come and go, or rights do.
- `sealing`: brokers that seal events, and get and lose keys.
"""
