"""Who is authorised to change rules: the moderator's signed rule book in a store, and polls of those affected."""
