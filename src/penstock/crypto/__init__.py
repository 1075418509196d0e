"""Sign, verify, seal and open; group keys and TLS certificates. The only importer of cryptographic libraries."""

from penstock.crypto.keys import ProtectedKey as ProtectedKey
from penstock.crypto.keys import PublicKey as PublicKey
from penstock.crypto.keys import SigningKey as SigningKey
from penstock.crypto.keys import StoredKey as StoredKey
from penstock.crypto.keys import digest as digest
from penstock.crypto.keys import new_key as new_key
from penstock.crypto.keys import private_key_to_sexp as private_key_to_sexp
from penstock.crypto.keys import protect as protect
from penstock.crypto.keys import read_key as read_key
from penstock.crypto.passphrases import Cost as Cost
