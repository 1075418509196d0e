"""Holders of rights on a type as a table and as a tree of delegations."""

from collections.abc import Iterator, Mapping

from penstock.apps.cli.shared.describe import listed, table
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.terminal import Shown, TreeLine, grid_table, trees
from penstock.codec.wire import Wire


def show_holders(answer: Mapping[str, object], names: NameBook, *, tree: bool) -> Iterator[Shown]:
    """Yield the holders in an answer of the service."""
    found = [table(one) for one in listed(answer.get("holders"))]  # type: ignore[arg-type]  # JSON
    # The owner has every right without a certificate.
    others = [one for one in found if listed(one.get("chain"))]
    if not others:
        yield "nobody except the owner has a right on this type, as far as the service knows"
    elif tree:
        yield from trees([_tree(str(answer.get("type")), others, names)])
    else:
        rows = [
            (
                names.show_text(str(one.get("holder"))),
                str(one.get("right")),
                _terms(table(one.get("restriction"))),
                _until(one),
                " → ".join(names.show_text(str(table(link).get("subject"))) for link in listed(one.get("chain"))),
            )
            for one in others
        ]
        yield grid_table(("holder", "right", "what", "until", "chain"), rows)
    if answer.get("complete") is False:
        yield "✗ there are more holders than could be followed: ask for single rights with --right"


def _tree(type_name: str, holders: list[Mapping[str, Wire]], names: NameBook) -> TreeLine:
    owner, _, name = type_name.partition("/")
    root = TreeLine(f"{names.show_text(owner)}, owner of {name}")
    #: lines by the ids of the certificates that lead to them
    lines: dict[tuple[str, ...], TreeLine] = {(): root}
    for one in sorted(holders, key=lambda one: len(listed(one.get("chain")))):
        links = [table(link) for link in listed(one.get("chain"))]
        path: tuple[str, ...] = ()
        for link in links:
            above, path = lines[path], (*path, str(link.get("id")))
            if path not in lines:
                lines[path] = TreeLine(f"{names.show_text(str(link.get('subject')))}  {path[-1][:15]}…")
                above.children.append(lines[path])
        text = f"{one.get('right')!s}: {_terms(table(one.get('restriction')))}, until {_until(one)}"
        lines[path].children.append(TreeLine(text))
    return root


def _terms(restriction: Mapping[str, Wire]) -> str:
    attributes = restriction.get("attributes")
    shown = "all attributes" if attributes == "*" else ", ".join(map(str, listed(attributes))) or "no attributes"
    forced = [f"{name} = {value!s}" for name, value in table(restriction.get("forced")).items()]
    conditions = [str(restriction[place]) for place in ("where", "when") if place in restriction]
    return shown + "".join(f", {one}" for one in (*forced, *conditions))


def _until(one: Mapping[str, Wire]) -> str:
    return str(one.get("not_after") or "without expiry").replace("+00:00", "Z")
