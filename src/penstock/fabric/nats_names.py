"""The names of streams and subjects at NATS servers. This module does not need nats-py.

What the servers hold, under one prefix:

    stream PREFIX_topics      subject PREFIX.topics.TOPIC: what a topic offers; PREFIX.owners.TOPIC: who owns it
    stream PREFIX-TOPIC       subjects PREFIX.t.TOPIC.KEY: the samples of a topic that is reliable or durable
    no stream                 PREFIX.t.TOPIC.PART.PART… of the other topics, PREFIX.ask.TOPIC for requests, and
                              PREFIX.alive.TOPIC[.INSTANCE] where writers renew their leases

The samples of named instances have subjects with PREFIX.i.TOPIC.INSTANCE in place of PREFIX.t.TOPIC, and a stream of
their own, PREFIX_i-TOPIC, from the first writer or reader of one on. A key is one token of a subject: its bytes in
base64, without padding; `_` is the empty key. Where there is no stream, each part of a key is a token, so that the
servers find the readers of a key and of all keys under a prefix.
"""

import base64

from penstock.fabric.port import KeyChoice, KeysUnder


class NatsNames:
    """The names under a prefix; `domain` is the JetStream domain, if the servers have several."""

    def __init__(self, prefix: str = "penstock", domain: str = "") -> None:
        self.prefix = prefix
        self.api = f"$JS.{domain}.API" if domain else "$JS.API"

    def subject(self, topic: str, key: str | None = None, instance: str = "") -> str:
        """Return the subject of a key, or of all keys, in a stream."""
        return f"{self._root(topic, instance)}.{'*' if key is None else _token(key)}"

    def subject_of_parts(self, topic: str, choice: KeyChoice | None = None, instance: str = "") -> str:
        """Return the subject of a key, of the keys under a prefix, or of all keys, where there is no stream."""
        if choice is None:
            return f"{self._root(topic, instance)}.>"
        key, last = (choice.prefix, ".>") if isinstance(choice, KeysUnder) else (choice, "")
        return f"{self._root(topic, instance)}.{'.'.join(map(_token, key.split('/')))}{last}"

    def _root(self, topic: str, instance: str) -> str:
        return f"{self.prefix}.i.{topic}.{instance}" if instance else f"{self.prefix}.t.{topic}"

    def stream(self, topic: str, *, named: bool = False) -> str:
        """Return the stream that keeps a topic, or the one of its named instances."""
        return f"{self.prefix}_i-{topic}" if named else f"{self.prefix}-{topic}"

    def alive(self, topic: str, instance: str = "") -> str:
        """Return the subject on which the writers of an instance renew their leases."""
        return f"{self.prefix}.alive.{topic}{'.' if instance else ''}{instance}"

    @property
    def registry(self) -> str:
        """Return the stream that keeps what topics offer and who owns them."""
        return f"{self.prefix}_topics"


def _token(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") or "_"
