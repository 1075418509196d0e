"""Bounds on pipeline jobs. A node file cannot set them: brokers run no jobs."""

from dataclasses import dataclass
from typing import Final

from penstock.policy.limits import PolicyLimits
from penstock.store.limits import StoreLimits

#: publishers that one batch of a job records, and hours of a period of a report on them
RECORD_PRINCIPALS: Final = 10_000
RECORD_HOURS: Final = 87_840
#: files, or batches of the job before, that one batch of a stream takes
BATCH_FILES: Final = 1_000_000
#: Parquet files whose columns are read together
TABLE_FILES: Final = 100_000
#: bad records whose places are noted while events are stored
NOTED_RECORDS: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class PipelineLimits(PolicyLimits, StoreLimits):
    """Bounds on policy files of jobs, and on what is in them."""

    #: subscribers that a policy file names
    policy_subscribers: int = 100_000
    #: what is remembered of requests that are decided together
    policy_remembered: int = 16_000_000


PIPELINE_LIMITS: Final = PipelineLimits()
