"""Sign, verify, seal and open; group keys and TLS certificates. The only importer of cryptographic libraries.

Signatures and ciphers:

- `keys` has Ed25519 keys: it signs, verifies and computes digests.
- `aead` encrypts with authentication: AES-GCM, AES-GCM-SIV, EAX.
- `hpke` encrypts to a public key.
- `passphrases` protects a secret by a passphrase.
- `wrapping` derives secrets, encrypts them under other secrets, and has key-encryption keys for key rings and logs.

Sealed blocks:

- `seal_keys` derives the keys of a block from the key that a key group shares.
- `sealer` seals a block, attribute by attribute.
- `opener` opens the attributes whose keys are held.
- `filters` seals conditions on single attributes.
- `signed_blocks` signs blocks, verifies who sealed them, and proves single events by Merkle trees.
- `blinding` computes labels for blinded types and attributes.

Groups and links:

- `key_tree` changes the secret of a group when members come or leave.
- `session` encrypts the records between two ends of a handshake.
- `tls` makes TLS 1.3 contexts and certificates for links.
"""

from penstock.crypto.keys import ProtectedKey as ProtectedKey
from penstock.crypto.keys import PublicKey as PublicKey
from penstock.crypto.keys import Signer as Signer
from penstock.crypto.keys import SigningKey as SigningKey
from penstock.crypto.keys import StoredKey as StoredKey
from penstock.crypto.keys import digest as digest
from penstock.crypto.keys import new_key as new_key
from penstock.crypto.keys import private_key_to_sexp as private_key_to_sexp
from penstock.crypto.keys import protect as protect
from penstock.crypto.keys import read_key as read_key
from penstock.crypto.passphrases import Cost as Cost
