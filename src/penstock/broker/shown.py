"""What a broker shows of its credentials: those that its own rights may rest on.

A broker goes by the rights of all its clients, which may be many, and are nothing that clients or other brokers need to
believe that it may be in the network and carry events. Nor are those shown that name a blinded type: all others would
learn that there is such a type, and who has to do with it.
"""

from collections.abc import Collection, Iterator

from penstock.codec.sexp import SExp
from penstock.model.names import TypeKey
from penstock.model.principals import KEY, Principal
from penstock.trust.credentials import Credentials


def resting(principal: Principal, credentials: Credentials) -> Credentials:
    """Return the credentials that chains to a principal may be made of; where that is open, they are among them."""
    found: set[str] = set()
    wanted = {principal}
    before = -1
    while len(found) != before:
        before = len(found)
        for certificate in credentials:
            subject = certificate.statement.subject
            # A name, or a quorum, may stand for anybody.
            is_key = isinstance(subject, Principal) and subject.scheme == KEY
            if not is_key or subject in wanted:
                found.add(certificate.id)
                wanted.add(certificate.statement.issuer)
    kept = [certificate for certificate in credentials if certificate.id in found]
    return Credentials.of(*kept, quorums=credentials.quorums)


def discreet(credentials: Credentials, blinded: Collection[TypeKey]) -> Credentials:
    """Return the credentials that name none of some types."""
    if not blinded:
        return credentials
    named = [{str(key.owner).encode(), key.name.encode()} for key in blinded]
    kept = [one for one in credentials if not any(both <= {*_atoms(one.statement.to_sexp())} for both in named)]
    return Credentials.of(*kept, quorums=credentials.quorums)


def _atoms(value: SExp) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _atoms(part)
