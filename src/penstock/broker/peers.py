"""The brokers that a router talks with: which of them are up, and what each has entered here and was told."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.broker.entries import Entry
from penstock.broker.hops import Hops
from penstock.broker.ledger import Ledger
from penstock.broker.messages import Enter, Withdraw
from penstock.broker.trees import Tree
from penstock.model.names import TypeKey
from penstock.model.principals import Principal


@dataclass(slots=True)
class Peer:
    """A neighbour: the session with it, when it was heard last, and what was entered on either side."""

    hops: Hops
    up: bool = False
    last: float = 0.0
    #: when the connection was made
    since: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)


class Peers(dict[Principal, Peer]):
    """See the module. `allowed` says which trees a neighbour may hear of."""

    def __init__(self, allowed: Callable[[TypeKey, Principal], bool]) -> None:
        super().__init__()
        self._allowed = allowed

    def up(self) -> list[Principal]:
        """Return those to whom there is a connection."""
        return [principal for principal, peer in self.items() if peer.up]

    def news(self, trees: Iterable[Tree]) -> Iterator[tuple[Principal, Enter | Withdraw]]:
        """Yield what has to be entered with whom, or withdrawn, after these trees have changed."""
        moves: list[tuple[Principal, Entry, bool]] = []
        for tree in trees:
            for principal, wanted in self._wanted(tree).items():
                differing = self[principal].ledger.differing(tree.key, wanted)
                moves.extend((principal, entry, holds) for entry, holds in differing)
        # A path is laid before the old one is given up.
        for principal, entry, holds in sorted(moves, key=lambda move: not move[2]):
            ledger = self[principal].ledger
            yield principal, ledger.tell(entry) if holds else ledger.untell(entry)

    def _wanted(self, tree: Tree) -> Mapping[Principal, Mapping[Entry, bool]]:
        """Return which entries of a tree each neighbour should know, of those that have changed."""
        everything, moves = tree.changed, tree.moves()
        if not everything:
            return moves
        wanted: dict[Principal, dict[Entry, bool]] = {}
        for principal in self.up():
            told = self[principal].ledger.told.get(tree.key, {})
            wanted[principal] = dict.fromkeys(told, False)
            if self._allowed(tree.key, principal):
                wanted[principal].update(dict.fromkeys(tree.entries_for(principal), True))
        return wanted
