"""Canonical bytes to and from the model: S-expressions first; later JSON, envelopes and XACML."""
