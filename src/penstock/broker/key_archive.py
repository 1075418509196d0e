"""Keys of epochs that are over, for logs: wrapped, and kept until somebody says that they are to be forgotten."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from penstock.broker.key_sealing import open_over, wrap_over
from penstock.codec.sexp import SExp
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, Secret, unopened
from penstock.model.instants import format_date, parse_date
from penstock.trust.key_messages import KeyGroup


@dataclass(frozen=True, slots=True)
class _Over:
    """A key of an epoch that is over, wrapped, and since when it is."""

    since: datetime
    salt: bytes = field(repr=False)
    box: bytes = field(repr=False)


class Archive:
    """See the module. What is forgotten are always the oldest epochs of a group."""

    def __init__(self, kek: Secret, random: RandomBytes) -> None:
        self._kek = kek
        self._random = random
        self._over: dict[bytes, dict[int, _Over]] = {}

    def put(self, group: KeyGroup, epoch: int, key: Secret, since: datetime) -> None:
        """Keep the key of an epoch that is over from now on."""
        salt = self._random(SALT_BYTES)
        box = wrap_over(self._kek, key, salt, group, epoch)
        self._over.setdefault(group.id, {})[epoch] = _Over(since, salt, box)

    def get(self, group: KeyGroup, epoch: int) -> Secret:
        """Return the key of an epoch that is kept. Raises `KeyError`."""
        kept = self._over[group.id][epoch]
        return open_over(self._kek, kept.box, kept.salt, group, epoch)

    def kept(self, group: KeyGroup, first: int, last: int) -> list[int]:
        """Return which epochs are kept, from one to another; they follow each other."""
        return sorted(epoch for epoch in self._over.get(group.id, ()) if first <= epoch <= last)

    def forget(self, before: datetime) -> None:
        """Forget the keys of epochs that were over before an instant."""
        for group, kept in self._over.items():
            self._over[group] = {epoch: one for epoch, one in kept.items() if one.since >= before}

    def to_sexp(self, *, since: datetime | None = None) -> SExp:
        """Return what is kept, wrapped as it is; only of epochs that were not over before an instant."""
        return (
            b"archive",
            *(
                (group, *(_write(epoch, one) for epoch, one in kept.items() if since is None or one.since >= since))
                for group, kept in self._over.items()
            ),
        )

    def read(self, value: SExp) -> "Archive":
        """Return the archive that `to_sexp` wrote. Raises `RefusedError` (`keys.unopened`)."""
        found = Archive(self._kek, self._random)
        match value:
            case (b"archive", *groups):
                for group in groups:
                    name, kept = _group(group)
                    found._over[name] = dict(map(_read, kept))
                return found
        raise unopened()


def _write(epoch: int, one: _Over) -> SExp:
    return (str(epoch).encode(), format_date(one.since), one.salt, one.box)


def _read(value: SExp) -> tuple[int, _Over]:
    match value:
        case (bytes(epoch), bytes(since), bytes(salt), bytes(box)) if epoch.isdigit():
            return int(epoch), _Over(parse_date(since), salt, box)
    raise unopened()


def _group(value: SExp) -> tuple[bytes, Iterable[SExp]]:
    match value:
        case (bytes(name), *kept):
            return name, kept
    raise unopened()
