"""What `penstock seal` and `penstock open` share: types, key rings, ciphers, and how far they have come."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from penstock.apps.cli.shared.commands import option, option_class
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import ShelfOptions, passphrase
from penstock.crypto.blinding import Directory
from penstock.crypto.kek import ProtectedKek
from penstock.crypto.opener import Opener, at_levels
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.sealer import ALGORITHMS, PADDINGS, SealerSettings
from penstock.crypto.wrapping import Secret
from penstock.errors import RefusedError
from penstock.model.names import TypeKey, TypeName
from penstock.model.types import EventType
from penstock.store.files.files import within
from penstock.store.files.key_rings import read_key_ring, read_stored_kek


@option_class
class CipherOptions:
    """How blocks are sealed."""

    algorithm: str = option(
        "--algorithm",
        type=click.Choice([*ALGORITHMS]),
        default="aes-gcm",
        show_default=True,
        help="Seal with this cipher.",
    )
    pad: str = option(
        "--pad",
        type=click.Choice([*PADDINGS]),
        default="none",
        show_default=True,
        help="Hide the length of columns: pad to powers of two, or to a few sizes.",
    )

    def settings(self) -> SealerSettings:
        """Return the settings that they mean."""
        return SealerSettings(ALGORITHMS[self.algorithm], PADDINGS[self.pad])


def kek_passphrase_option() -> Any:
    """Declare `--kek-passphrase-file`."""
    return option(
        "--kek-passphrase-file",
        metavar="FILE",
        help="Read the key-encryption key's passphrase from the first line of this file (default: ask for it).",
    )


@option_class
class RingOptions:
    """The key ring that blocks are sealed or opened with."""

    ring_file: str = option(
        "--keys",
        required=True,
        envvar="PENSTOCK_KEYS",
        metavar="FILE",
        help="Use the keys in this key ring (default: $PENSTOCK_KEYS).",
    )
    kek_file: str = option(
        "--kek",
        required=True,
        envvar="PENSTOCK_KEK",
        metavar="FILE",
        help="Decrypt the key ring with this key-encryption key (default: $PENSTOCK_KEK).",
    )
    kek_passphrase_file: str | None = kek_passphrase_option()

    def load(self) -> KeyRing:
        """Read the key ring. Raises as `load_ring`."""
        return load_ring(self.ring_file, self.kek_file, self.kek_passphrase_file)


def _type_option(*, required: bool) -> Any:
    return option(
        "--type",
        "--type-file",
        required=required,
        multiple=True,
        metavar="FILE",
        help="Read a signed event type. Can be repeated.",
    )


@option_class
class OptionalTypesOptions:
    """Signed event types, for commands that can do without."""

    type_files: tuple[str, ...] = _type_option(required=False)
    shelf: ShelfOptions

    def load(self, names: NameBook, now: datetime) -> "Types":
        """Read and verify the types. Raises what reading and verifying them raise."""
        found = [self.shelf.verified(file, now)[0].event_type for file in self.type_files]
        return Types(names, {one.name: one for one in found}, {one.key: one for one in found})


@option_class
class TypesOptions(OptionalTypesOptions):
    """Signed event types, at least one."""

    type_files: tuple[str, ...] = _type_option(required=True)


def load_kek(file: str, passphrase_file: str | None) -> Secret:
    """Read a key-encryption key, and ask for its passphrase where it has one. Raises what `read_kek` raises."""
    stored = read_stored_kek(Path(file))
    if isinstance(stored, ProtectedKek):
        secret = passphrase(passphrase_file, f"Passphrase of {file}")
        with within(file):
            return stored.open(secret)
    return stored


def load_ring(ring_file: str, kek_file: str, kek_passphrase_file: str | None) -> KeyRing:
    """Read a key ring. Raises what `read_key_ring` and `load_kek` raise."""
    return read_key_ring(Path(ring_file), load_kek(kek_file, kek_passphrase_file))


@dataclass(frozen=True, slots=True)
class Types:
    """The verified types that were given; of several versions, events are shown in the last one."""

    names: NameBook
    by_name: dict[TypeName, EventType]
    by_key: dict[TypeKey, EventType]

    def opener(self, ring: KeyRing) -> Opener:
        """Return what opens blocks of these types with the keys of a ring."""
        levels = {key: one.sealing for key, one in self.by_key.items()}
        return Opener(ring, Directory.of(ring, self.by_name.values()), admits=at_levels(levels))

    def written(self, name: str) -> EventType:
        """Return the type that an event names, or the first one where it names none.

        Raises `RefusedError` (`seal.unknown-type`) and `MalformedError` (`name.malformed` and codes of principals).
        """
        if not name:
            return next(iter(self.by_name.values()))
        owner, rest = self.names.owned(name, "type")
        found = self.by_name.get(TypeName.parse(f"{owner}/{rest}"))
        if found is None:
            raise _unknown_type(name)
        return found

    def of(self, key: TypeKey, ancestors: tuple[TypeKey, ...]) -> EventType:
        """Return the type in which events are read, or the nearest ancestor. Raises `RefusedError`."""
        for known in (key, *ancestors):
            if known in self.by_key:
                return self.by_key[known]
        raise _unknown_type(key.name)


@dataclass(slots=True)
class FileProgress:
    """How far a command has come."""

    word: str
    events: int = 0
    blocks: int = 0
    octets: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def rate(self) -> int:
        """Events a second."""
        seconds = time.monotonic() - self.started
        return round(self.events / seconds) if seconds else 0

    def text(self) -> str:
        """Return it in words."""
        return f"{self.word} {counted(self.events, 'event')}, {counted(self.blocks, 'block')}, {self.octets:,} bytes"

    def live(self) -> str:
        """Return it in words while it goes on."""
        return f"{self.text()}, {self.rate:,} events/s"

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"events": self.events, "blocks": self.blocks, "octets": self.octets}


def check_signed(types: Iterable[EventType], signer: str | None) -> None:
    """Refuse to seal what readers would refuse. Raises `RefusedError` (`seal.unsigned`)."""
    unsigned = [one.name.name for one in types if one.signed]
    if unsigned and signer is None:
        raise RefusedError("seal.unsigned", f"events of `{unsigned[0]}` have to be signed", hint="give --key")


def _unknown_type(name: str) -> RefusedError:
    return RefusedError(
        "seal.unknown-type", f"events of `{name[:120]}` are of none of the types given", hint="give it with --type"
    )
