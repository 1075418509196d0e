"""The changes that `penstock type edit` makes, in their order, as one new version."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.apps.cli.attributes import parse_attribute, parse_spec, split_attribute, split_pair
from penstock.errors import MalformedError
from penstock.model.types import Sealing, TypeDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What is to be changed, as it was written. Removed first, then renamed, then retyped, then added."""

    add: tuple[str, ...]
    remove: tuple[str, ...]
    rename: tuple[str, ...]
    retype: tuple[str, ...]
    #: how it is sealed from now on; None for what stays as it is
    sealing: Sealing | None = None
    blinded: bool | None = None
    signed: bool | None = None

    def apply(self, before: TypeDefinition, version: str, new_uid: Callable[[], str]) -> TypeDefinition:
        """Return the next version. Raises `MalformedError` (`cli.no-change` and what the changes raise)."""
        changed = self.add or self.remove or self.rename or self.retype
        if not changed and (self.sealing, self.blinded, self.signed) == (None, None, None):
            raise MalformedError(
                "cli.no-change", "nothing is changed", hint="give --add, --remove, --rename, --retype or --seal"
            )
        definition = before
        steps = iter(range(len(self.add) + len(self.remove) + len(self.rename) + len(self.retype)))
        # Each step gives a version of its own; only the last one is kept.
        for name in self.remove:
            definition = definition.remove(name, version=f"step-{next(steps)}")
        for written in self.rename:
            definition = definition.rename(*split_pair(written, "OLD=NEW"), version=f"step-{next(steps)}")
        for written in self.retype:
            name, uid, spec = split_attribute(written)
            definition = definition.retype(name, uid or new_uid(), parse_spec(spec), version=f"step-{next(steps)}")
        for written in self.add:
            made = parse_attribute(written, new_uid())
            definition = definition.add(made.name, made.uid, made.spec, version=f"step-{next(steps)}")
        return replace(
            definition,
            name=replace(before.name, version=version),
            previous=before.name.version,
            sealing=before.sealing if self.sealing is None else self.sealing,
            blinded=before.blinded if self.blinded is None else self.blinded,
            signed=before.signed if self.signed is None else self.signed,
        )
