"""Who is authorised to change rules: the moderator's signed rule book in a store, and polls of those affected.

- `rulebook` is the rule book: it checks each step and appends it to a ledger.
- `rulebook_records` converts the steps of a rule book to changes and back.
- `rulebook_state` computes the state of a rule book from its changes.
- `signed_requests` signs and verifies requests to the moderator.
- `polls` keeps polls in a ledger and takes the steps they choose. `penstock.moderator.polls` counts the votes.
- `polls_records` converts polls to changes and computes their state.
- `polls_topics` defines the two topics that polls use.
- `polls_moderator` asks over a fabric, collects votes and closes polls.
- `polls_publisher` reads questions from a fabric and answers them.
"""
