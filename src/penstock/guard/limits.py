"""Bounds on decisions. A node file cannot set them: all brokers must decide alike."""

from typing import Final

#: bytes of a record in a decision log
RECORD_BYTES: Final = 1 << 20
#: branches of one principal by agreed rules
AGREED_BRANCHES: Final = 1_024
#: different views of one subscription that its filter distinguishes
BROKER_VIEWS: Final = 3
#: residuals of policies that are kept
RESIDUAL_KEPT: Final = 4_096
