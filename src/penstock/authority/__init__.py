"""Whose word counts: the moderator's rule book, which is kept in a store."""
