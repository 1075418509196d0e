"""The brokers of the London example and their decision log: whatever is asked of them is recorded first."""

import time
from itertools import count
from pathlib import Path

from london_cast import CCS_BROKER, DOMAINS, MET, MET_BROKER, NOW, SMITH
from penstock.guard import CapabilityAuthority, Counts, Recorded, Recorder, Request
from penstock.model import Principal
from penstock.pipeline.policy import Policy
from penstock.store import DecisionFile
from penstock.trust import Credentials


class Desk:
    """Where requests go. A broker of the asker's domain decides; guests go to that of the Congestion Charge Service."""

    def __init__(self, path: Path, policy: Policy) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self.path = path
        self.policy = policy
        #: the clock of the example goes with its traffic
        self.now = NOW
        numbers = count(1)
        self._recorders = {
            broker.principal: Recorder(
                source=str(broker.principal),
                sink=DecisionFile(path),
                clock=lambda: self.now,
                timer=time.perf_counter_ns,
                ids=lambda: f"london-{next(numbers)}",
                domains=tuple(DOMAINS),
            )
            for broker in (CCS_BROKER, MET_BROKER)
        }

    def ask(self, request: Request, credentials: Credentials | None = None) -> Recorded:
        """Decide and record, by the credentials of the example or by others that are shown."""
        policy = self.policy if credentials is None else Policy(credentials)
        authorities = [CapabilityAuthority(policy.credentials)]
        return self._recorder(request.principal).decide(request, authorities, policy.revision)

    def enforced(self, recorded: Recorded, counts: Counts) -> None:
        """Record how many events have passed under a decision."""
        self._recorder(recorded.record.principal).enforced(recorded.record, counts)

    def _recorder(self, principal: Principal) -> Recorder:
        police = principal in (MET.principal, MET_BROKER.principal, SMITH.principal)
        return self._recorders[(MET_BROKER if police else CCS_BROKER).principal]
