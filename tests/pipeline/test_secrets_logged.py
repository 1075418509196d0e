"""What Spark logs of jobs on a cluster, and keeps as their history, holds no secret of a policy, and no key."""

import pytest
from tests.pipeline.cluster import Ran
from tests.pipeline.secrets_job import KEY_TRACES
from tests.pipeline.test_secrets import leaks

#: what shows that there was something to find: plans whose constants are columns, executors, and the server of clients
TOLD = {
    "log": (" INFO ", "CoarseGrainedExecutorBackend", "that was abandoned", "cached_local_relation", "seal.closed-log"),
    "history": ("SparkListenerSQLExecutionStart", "SparkListenerConnectOperationStarted", "@i0", "MapInArrow"),
}


@pytest.mark.parametrize("name", ["log", "history"])
def test_logs_and_the_history_of_jobs_hold_neither_constants_nor_values_nor_keys(everywhere: Ran, name: str) -> None:
    """The history is what the UI shows; Spark's own log says what it says with INFO.

    The job ran twice: on executors, and for a client of Spark Connect, whose requests the server logs.
    """
    assert [line.split()[0] for line in everywhere.printed if " secrets " in line] == ["submitted", "client"]
    text = {"log": everywhere.log, "history": everywhere.history}[name]
    for there in TOLD[name]:
        assert there in text
    assert leaks(text) == set()
    assert not KEY_TRACES.search(text.encode())
