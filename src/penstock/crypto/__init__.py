"""Recipes only: sign and verify now, seal and group keys later. The sole importer of crypto libraries."""

from penstock.crypto.keyfile import ProtectedKey as ProtectedKey
from penstock.crypto.keyfile import StoredKey as StoredKey
from penstock.crypto.keyfile import new_key as new_key
from penstock.crypto.keyfile import private_key_to_sexp as private_key_to_sexp
from penstock.crypto.keyfile import protect as protect
from penstock.crypto.keyfile import read_key as read_key
from penstock.crypto.keys import PublicKey as PublicKey
from penstock.crypto.keys import SigningKey as SigningKey
from penstock.crypto.keys import digest as digest
from penstock.crypto.passphrases import Cost as Cost
