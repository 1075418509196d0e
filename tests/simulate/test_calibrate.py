"""Service times are measured while worlds run."""

from penstock.simulate.calibrate import calibrated
from penstock.simulate.simulation import SERVICES


def test_each_service_is_measured() -> None:
    meter = calibrated(12)
    assert [service for service in SERVICES if not meter.calls[service]] == []
    assert all(0 < seconds < 0.1 for seconds in meter.times().seconds.values())
