"""What the tests of group keys share: secrets from a seed, and groups whose members all listen."""

from random import Random

from penstock.crypto.key_tree import KeyPath, KeyTree, Rekey, handle
from penstock.crypto.wrapping import SECRET_BYTES, Secret

GROUP = b"group"


class Secrets:
    """Fresh secrets, always the same ones."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)  # noqa: S311  # the same secrets each time

    def __call__(self) -> Secret:
        return Secret(self.random.randbytes(SECRET_BYTES))

    def several(self, count: int) -> list[Secret]:
        return [self() for _ in range(count)]


class Listening:
    """A group whose members hear everything."""

    def __init__(self, size: int = 0, seed: int = 0) -> None:
        self.fresh = Secrets(seed)
        self.tree = KeyTree(GROUP)
        self.paths: dict[bytes, KeyPath] = {}
        #: all that anybody could hear
        self.heard: list[Rekey] = []
        if size:
            self.change(size)

    @property
    def members(self) -> list[bytes]:
        return [*self.paths]

    def change(self, joins: int = 0, leaves: tuple[bytes, ...] = ()) -> Rekey:
        leaf_keys = self.fresh.several(joins)
        rekey = self.tree.rekey(self.fresh(), leaf_keys, leaves)
        self.heard.append(rekey)
        new = {handle(leaf): KeyPath(GROUP, 0, leaf, {}) for leaf in leaf_keys}
        stay = {name: path for name, path in self.paths.items() if name not in leaves}
        self.paths = {name: path.follow(rekey) for name, path in (stay | new).items()}
        return rekey
