"""What is kept: append-only records."""

from penstock.store.files.decision_file import DecisionFile as DecisionFile
