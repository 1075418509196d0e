"""What is kept: append-only records."""

from penstock.store.decision_file import DecisionFile as DecisionFile
