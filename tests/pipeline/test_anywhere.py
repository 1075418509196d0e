"""The jobs run where Spark runs: on executors of their own, submitted, and for clients of Spark Connect."""

import pytest
from tests.pipeline import cluster
from tests.pipeline.anywhere import wanted
from tests.pipeline.jobs_plant import good


@pytest.mark.parametrize("kind", ["submitted", "client"])
def test_every_job_runs(everywhere: cluster.Ran, kind: str) -> None:
    done = [line.split()[1] for line in everywhere.printed if line.startswith(f"{kind} ")]
    assert done == wanted(kind), "\n".join(everywhere.printed)[-5_000:]
    assert everywhere.status == 0, "\n".join(everywhere.printed)[-5_000:]


def test_commands_run_as_they_are_submitted_and_for_clients(everywhere: cluster.Ran) -> None:
    events = good(cluster.RECORDS)
    seen = sum(number > 20 for number in events)
    printed = "\n".join(everywhere.printed)
    assert f"{cluster.RECORDS} records = {len(events)} events" in printed
    # Two views: of what was delivered on the cluster, and of what was delivered for a client.
    assert printed.count(f"\n1 of {seen} events\n") == 2
