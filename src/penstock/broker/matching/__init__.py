"""Which of many selectors match an event, and which of them cover others.

`clauses` takes selectors apart, `matcher` indexes them, `coverage` forwards no more subscriptions than are needed.
May import from `penstock.broker`: `wire`.
"""
