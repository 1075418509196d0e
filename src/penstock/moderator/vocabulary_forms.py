"""The written form of what rules may speak about, as fields of signed statements:

(scope <scope>) (types (of <owner> <type> …) …) (publishers <attribute> …) (subscribers <attribute> …)
<type>       (<name>) | (<name> <parent>) | (<name> <owner of the parent> <parent>)
<attribute>  (<name> <kind> <domain>)
"""

from collections.abc import Iterator
from itertools import groupby

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.codec.values import spec_from_sexp, spec_to_sexp
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import ProfileSchema
from penstock.model.tree import Scope, TypeTree
from penstock.moderator.vocabulary import Vocabulary
from penstock.trust.signed import malformed, one, read_owner


def vocabulary_fields(words: Vocabulary) -> tuple[SExp, ...]:
    """Return the fields that say what rules may speak about."""
    return (
        (b"scope", words.tree.scope.encode()),
        (b"types", *_types(words.tree)),
        (b"publishers", *_attributes(words.publishers)),
        (b"subscribers", *_attributes(words.subscribers)),
    )


def read_vocabulary(body: SExp) -> Vocabulary:
    """Read the fields of a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise)."""
    scope = text(one(body, b"scope"))
    if scope not in [*Scope]:
        raise malformed("a tree has a scope that is not known")
    tree = TypeTree.of(dict(_read_types(rows(body, b"types"))), Scope(scope))
    publishers, subscribers = (_read_attributes(rows(body, name)) for name in (b"publishers", b"subscribers"))
    return Vocabulary(tree, publishers, subscribers)


def rows(body: SExp, name: bytes) -> tuple[SExp, ...]:
    """Return the values of a field that must be there. Raises `MalformedError` (`evolution.malformed`)."""
    found = sexp_field(body, name)
    if found is None:
        raise malformed(f"a statement has one `({name.decode()} …)`")
    return found[1:]


def _types(tree: TypeTree) -> Iterator[SExp]:
    for owner, events in groupby(sorted(tree.parents), key=lambda event: event.owner):
        yield (b"of", str(owner).encode(), *(_hung(event, tree.parents[event]) for event in events))


def _hung(event: TypeKey, parent: TypeKey | None) -> SExp:
    if parent is None:
        return (event.name.encode(),)
    elsewhere = () if parent.owner == event.owner else (str(parent.owner).encode(),)
    return (event.name.encode(), *elsewhere, parent.name.encode())


def _read_types(groups: tuple[SExp, ...]) -> Iterator[tuple[TypeKey, TypeKey | None]]:
    for group in groups:
        match group:
            case (b"of", owner, *types):
                of = read_owner(owner)
                yield from (_read_hung(of, each) for each in types)
            case _:
                raise malformed("types stand by their owners")


def _read_hung(owner: Principal, value: SExp) -> tuple[TypeKey, TypeKey | None]:
    match value:
        case (name,):
            return TypeKey(owner, text(name)), None
        case (name, parent):
            return TypeKey(owner, text(name)), TypeKey(owner, text(parent))
        case (name, other, parent):
            return TypeKey(owner, text(name)), TypeKey(read_owner(other), text(parent))
    raise malformed("a type has a name, and perhaps a parent")


def _attributes(schema: ProfileSchema) -> Iterator[SExp]:
    for name, spec in sorted(schema.attributes.items()):
        yield (name.encode(), *spec_to_sexp(spec))


def _read_attributes(listed: tuple[SExp, ...]) -> ProfileSchema:
    found = {}
    for row in listed:
        match row:
            case (name, *spec):
                found[text(name)] = spec_from_sexp(tuple(spec))
            case _:
                raise malformed("an attribute has a name and a kind")
    return ProfileSchema(found)
