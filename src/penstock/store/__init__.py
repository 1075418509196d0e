"""Persistent data: append-only ledgers, and files."""

from penstock.store.files.decision_file import DecisionFile as DecisionFile
