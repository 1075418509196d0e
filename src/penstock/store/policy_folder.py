"""What a node must not forget about owners' policies: a folder with a file for each owner, replaced as a whole.

Another file holds the brokers that the node has seen, which it waits for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import FailedError
from penstock.model.principals import Principal
from penstock.store.files import replace_file, unreadable

_BROKERS: Final = "brokers.seen"


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """See the module. The folder must be there. What is kept is signed by the broker, which is checked on reading."""

    path: Path

    def load(self) -> Iterator[bytes]:
        """Yield all snapshots. Raises `FailedError` (`file.unreadable`)."""
        for file in sorted(self.path.glob("*.policy")):
            try:
                yield file.read_bytes()
            except OSError as error:
                raise FailedError("file.unreadable", f"`{file}` cannot be read: {error.strerror}") from error

    def save(self, owner: Principal, snapshot: bytes) -> None:
        """Keep a snapshot in the place of the last one. Raises `FailedError` (`file.unwritable`)."""
        replace_file(self.path / f"{str(owner).replace(':', '-')}.policy", snapshot)

    def load_brokers(self) -> bytes:
        """Return the brokers that were seen. Raises `FailedError` (`file.unreadable`)."""
        file = self.path / _BROKERS
        try:
            return file.read_bytes() if file.exists() else b""
        except OSError as error:
            raise unreadable(str(file), error) from error

    def save_brokers(self, seen: bytes) -> None:
        """Keep the brokers that were seen. Raises `FailedError` (`file.unwritable`)."""
        replace_file(self.path / _BROKERS, seen)
