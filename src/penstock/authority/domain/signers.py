"""Keys outside this process: a program holds the key, such as a tool of a PKCS#11 token, and signs.

The program is started for each signature. It reads the message from standard input and writes the 64 bytes of the
Ed25519 signature to standard output. Each signature is verified with the public key before it is used, so that a wrong
program or token cannot make the domain issue certificates that nobody accepts.
"""

import subprocess
from collections.abc import Sequence
from typing import Final

from penstock.crypto import PublicKey
from penstock.crypto.keys import SIGNATURE_BYTES
from penstock.errors import FailedError, RefusedError
from penstock.model.principals import Principal

#: seconds that a program may take for one signature
PATIENCE: Final = 30.0


class ProgramSigner:
    """See `penstock.crypto.Signer`. Neither its arguments nor what the program prints are shown: they may be secret."""

    def __init__(self, command: Sequence[str], public: PublicKey, *, patience: float = PATIENCE) -> None:
        self._command = tuple(command)
        self._public = public
        self._patience = patience

    def __repr__(self) -> str:
        return f"ProgramSigner({self.principal.short})"

    @property
    def public(self) -> PublicKey:
        """Return the public key."""
        return self._public

    @property
    def principal(self) -> Principal:
        """Return the principal that the key is."""
        return self._public.principal

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message.

        Raises `FailedError` (`signer.failed`) if the program fails, takes too long, or signs with another key.
        """
        try:
            done = subprocess.run(  # noqa: S603  # the operator's own program, without a shell
                self._command,
                input=message,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self._patience,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _failed(f"has not answered within {self._patience:g} seconds") from None
        except (OSError, ValueError) as error:
            raise _failed(f"cannot be started: {type(error).__name__}") from None
        if done.returncode != 0:
            raise _failed(f"ended with status {done.returncode}")
        try:
            self._public.verify(message, done.stdout)
        except RefusedError:
            size = len(done.stdout)
            what = "a signature by another key" if size == SIGNATURE_BYTES else f"{size} bytes that are not a signature"
            raise _failed(f"has printed {what}") from None
        return done.stdout


def _failed(what: str) -> FailedError:
    return FailedError(
        "signer.failed",
        f"the program that holds the domain's key {what}",
        hint="run it by hand: it reads a message from standard input and prints the 64 bytes of its signature",
    )
