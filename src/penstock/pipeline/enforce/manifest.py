"""The manifest of delivered rows: who reads which program, in which version. Nothing here needs Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from shlex import quote
from typing import Final

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError, did_you_mean
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.enforce.policy import PipelinePolicy, Program, Subscriber, programs_of

PROGRAM: Final = "@program"
SUBSCRIBER: Final = "@subscriber"
POLICY: Final = "@policy"
ROWS: Final = "rows"
VIEWS: Final = "views"
WITHOUT_RIGHTS: Final = "without_rights"
_FORMAT: Final = 1
_LISTED: Final = 10
"""Subscribers that an error lists, at most."""


class Layout(StrEnum):
    """The storage layout of delivered rows."""

    PROGRAM = "program"
    SUBSCRIBER = "subscriber"


@dataclass(frozen=True, slots=True)
class StoredAttribute:
    """An attribute of a reader's version: where it stands, and what the reader calls it."""

    id: str
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ReaderView:
    """One reader's program and version of the type."""

    program: int
    type: str
    attributes: tuple[StoredAttribute, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a batch of delivered rows. `revision` is that of the policy.

    `sorted` says that the programs have no folders, and stand in one table. `without_rights` names the subscribers who
    may see nothing.
    """

    layout: Layout
    revision: str
    views: Mapping[str, ReaderView]
    sorted: bool = False
    without_rights: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the manifest as plain data; versions and programs stand in it once."""
        programs: dict[int, dict[str, object]] = {}
        types: dict[str, object] = {}
        for subscriber, view in self.views.items():
            types[view.type] = [{"id": a.id, "name": a.name, "kind": str(a.kind)} for a in view.attributes]
            program = programs.setdefault(view.program, {"type": view.type, "subscribers": []})
            members = program["subscribers"]
            if isinstance(members, list):
                members.append(subscriber)
        return {
            "format": _FORMAT,
            "layout": str(self.layout),
            "revision": self.revision,
            "sorted": self.sorted,
            "programs": [{"program": number, **program} for number, program in programs.items()],
            "types": types,
            WITHOUT_RIGHTS: list(self.without_rights),
        }

    @classmethod
    def from_dict(cls, found: object) -> "Manifest":
        """Read a manifest from plain data. Raises `MalformedError` (`layout.manifest`)."""
        try:
            return _manifest(found)
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(
                "layout.manifest", "a manifest cannot be read", hint="it may be written by a later version, or by hand"
            ) from error


def _manifest(found: object) -> Manifest:
    if not isinstance(found, dict) or found["format"] != _FORMAT:
        raise TypeError("the manifest has another format")
    types = {
        str(name): tuple(StoredAttribute(str(a["id"]), str(a["name"]), Kind(a["kind"])) for a in attributes)
        for name, attributes in found["types"].items()
    }
    views = {
        str(subscriber): ReaderView(int(program["program"]), str(program["type"]), types[program["type"]])
        for program in found["programs"]
        for subscriber in program["subscribers"]
    }
    without = tuple(str(name) for name in found.get(WITHOUT_RIGHTS, ()))
    return Manifest(Layout(found["layout"]), str(found["revision"]), views, bool(found["sorted"]), without)


def layout_named(name: str) -> Layout:
    """Return a layout by name. Raises `MalformedError` (`layout.unknown`)."""
    try:
        return Layout(name)
    except ValueError:
        raise MalformedError(
            "layout.unknown",
            f"`{name[:40]}` is not a layout",
            hint=did_you_mean(name, Layout, f"choose {' or '.join(Layout)}"),
        ) from None


def reader_views(programs: Sequence[Program]) -> dict[str, ReaderView]:
    """Return each reader's view. Raises `MalformedError` (`layout.subscriber`)."""
    found: dict[str, ReaderView] = {}
    for program in programs:
        version = _version(program.event_type)
        for reader in program.readers:
            if not reader or reader in found:
                raise MalformedError(
                    "layout.subscriber",
                    f"`{reader[:80]}` is the name of two subscribers" if reader else "a subscriber has no name",
                    hint="give each subscription a name of its own",
                )
            found[reader] = ReaderView(program.number, str(program.event_type.name), version)
    return found


def _version(event_type: EventType) -> tuple[StoredAttribute, ...]:
    return tuple(StoredAttribute(str(a.id), a.name, a.spec.kind) for a in event_type.attributes)


def policy_mark(revision: str) -> str:
    """Return the end of a policy's revision: a digest, short enough for the name of a folder."""
    return revision[-16:] or "none"


def reader_program(policy: PipelinePolicy, reader: str) -> Program:
    """Return the program of one subscriber.

    Raises `RefusedError` (`pipeline.no-rights`), `MalformedError` (`pipeline.unknown-subscriber`) and as `programs_of`.
    """
    own = tuple(one for one in policy.subscribers if one.name == reader)
    found = programs_of(replace(policy, subscribers=own))
    if not found:
        others = [one.name for one in policy.subscribers if one.name != reader]
        raise no_view(reader, others, [one.name for one in own])
    return found[0]


def manifests_of(path: str, found: Mapping[int, Mapping[str, object]]) -> dict[int, Manifest]:
    """Return the manifest of each complete batch of an output, by its commits.

    Raises `FailedError` (`layout.incomplete`) where there is none, and `MalformedError` (`layout.manifest`).
    """
    if not found:
        raise FailedError(
            "layout.incomplete",
            f"`{path}` holds no complete output",
            hint="the run may have been stopped, or writes elsewhere: run it again",
        )
    if not any("format" in said for said in found.values()):
        raise FailedError(
            "layout.incomplete",
            f"`{path}` is the output of another job, without views",
            hint=f"run `penstock pipeline deliver {quote(path)} --policy POLICY --out DELIVERED`, and view its output",
        )
    return {batch: Manifest.from_dict(said) for batch, said in found.items()}


def asked_programs(policy: PipelinePolicy, reader: str | None = None) -> tuple[Program, ...]:
    """Return the programs of a policy, or those of one subscriber, with their numbers in the policy.

    Raises as `subscribers_of` and `programs_of`.
    """
    names = {one.name for one in subscribers_of(policy, reader)}
    asked = programs_of(policy)
    if reader is None:
        return asked
    return tuple(replace(program, readers=(reader,)) for program in asked if not names.isdisjoint(program.readers))


def subscribers_of(policy: PipelinePolicy, reader: str | None = None) -> tuple[Subscriber, ...]:
    """Return the subscribers of a policy, or the one of a name.

    Raises `MalformedError` (`pipeline.unknown-subscriber`).
    """
    found = tuple(one for one in policy.subscribers if reader in (None, one.name))
    if reader is not None and not found:
        raise no_view(reader, (one.name for one in policy.subscribers), ())
    return found


def no_view(name: str, readers: Iterable[str], without_rights: Iterable[str]) -> PenstockError:
    """Return the error for a subscriber without a view: it has no rights, or there is none of that name."""
    refused = [*without_rights]
    if name in refused:
        return RefusedError(
            "pipeline.no-rights",
            f"subscriber `{name[:80]}` may not subscribe to its type",
            hint=f"run `penstock explain --principal {quote(name[:80])} --right subscribe --type-file TYPE"
            " --credential CERTIFICATES`, with the files that the policy file names, to see which right is missing",
        )
    known = [*readers, *refused]
    others = did_you_mean(name, known, _listed(sorted(known)))
    return MalformedError(
        "pipeline.unknown-subscriber",
        f"the policy has no subscriber `{name[:80]}`",
        hint=f"{others} Subscribers are listed in the policy file",
    )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "it has none."
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"there are: {', '.join(name[:80] for name in names[:_LISTED])}{more}."
