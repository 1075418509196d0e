"""The agreed rules that `penstock explain` goes by besides certificates, as a broker would."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.guard import Agreements
from penstock.store.named_files import NamedFiles
from penstock.store.named_principals import Naming

_USAGE: Final = "cli.usage"
_NAMING: Final = Naming(
    file="command", no_match=_USAGE, limit=_USAGE, twice=_USAGE, principal=_USAGE, help="penstock explain --help"
)


def load_agreements(files: Iterable[str]) -> Agreements:
    """Read agreements and profiles, and verify all of them. Raises as `NamedFiles.agreements`."""
    return NamedFiles(Path(), _NAMING).agreements(files)
