"""Certificates, tags, reduction, signed event types, validity: who may do what, and why."""
