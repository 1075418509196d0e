"""Frozen values that everything else speaks about: names, principals, types, events, profiles, instants."""
