"""Who is authorised to change rules: the moderator's signed rule book in a store, and polls of those affected.

- `rulebook` is the rule book: it checks each step and appends it to a ledger.
- `rulebook_records` has signed requests to the moderator, and converts the steps of a rule book to changes and back.
- `rulebook_state` computes the state of a rule book from its changes.
- `polls` keeps polls in a ledger and takes the steps they choose. `penstock.moderator.polls` counts the votes.
- `polls_network` lets a moderator ask over a fabric and collect votes, and publishers answer.
"""
