"""What a node must not forget about owners' policies: a folder with a file for each owner, replaced as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import FailedError
from penstock.model.principals import Principal
from penstock.store.files import replace_file


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
