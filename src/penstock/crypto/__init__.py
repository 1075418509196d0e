"""Recipes only: sign and verify now, seal and group keys later. The sole importer of crypto libraries."""

from penstock.crypto.keys import PublicKey as PublicKey
from penstock.crypto.keys import SigningKey as SigningKey
from penstock.crypto.keys import digest as digest
