"""Jobs that go by a policy file: as a stream they read it anew with each batch.

What a policy file says may change while a stream runs: a right is given, or revoked. So before each batch the file and
everything that it names are looked at, and where one of them is not as it was, all of it is read and verified again. A
policy that cannot be read or does not hold stops the stream before anything of the batch is written: nobody knows
then what is still allowed. Each batch is decided by one policy, whose revision is said in its commit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeAlias, TypeVar

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import RefusedError
from penstock.pipeline.commits import Said
from penstock.pipeline.jobs import Job
from penstock.pipeline.outputs import Output
from penstock.pipeline.policy import Policy
from penstock.pipeline.policy_file import load_policy, policy_digest
from penstock.pipeline.streaming import Streaming

REVISIONS: Final = "policies"
"""What a commit calls the revisions of the policies by which its batch was decided."""

J = TypeVar("J", bound=Job)
Make: TypeAlias = Callable[[tuple[Policy, ...]], J]
"""Makes a job that goes by some policies."""


@dataclass(slots=True)
class Watched:
    """Some policy files as they were when they were read last."""

    files: tuple[str, ...]
    clock: Callable[[], datetime]
    policies: tuple[Policy, ...] = field(init=False)
    _digests: tuple[bytes, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._read(self._now())

    def renew(self) -> bool:
        """Read the files again where anything in them has changed, and say whether it has. Raises as `load_policy`."""
        digests = self._now()
        if digests == self._digests:
            return False
        self._read(digests)
        return True

    def latest(self) -> tuple[Policy, ...]:
        """Return the policies as they are now. Raises as `load_policy`."""
        self.renew()
        return self.policies

    def _now(self) -> tuple[bytes, ...]:
        return tuple(policy_digest(file) for file in self.files)

    def _read(self, digests: tuple[bytes, ...]) -> None:
        # What changes in between is not what the digest is of, and is read again with the next batch.
        self.policies = tuple(load_policy(file, self.clock()) for file in self.files)
        self._digests = digests


@dataclass(slots=True)
class ByPolicy(Generic[J]):
    """A job that goes by policy files; see the module.

    One whose source says by which policies it goes stops where they are others: its batches are added up. Raises what
    reading a policy and making the job raise.
    """

    watched: Watched
    make: Make[J]
    job: J = field(init=False)

    def __post_init__(self) -> None:
        self.job = self.make(self.watched.policies)

    @property
    def name(self) -> str:
        """What it is called."""
        return self.job.name

    @property
    def source(self) -> str:
        """What it reads."""
        return self.job.source

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that it writes."""
        return self.job.parts

    @property
    def files(self) -> str | None:
        """Where the files stand that it reads."""
        return self.job.files

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return what would be computed of some input."""
        return self.job.planned(events)

    def all(self, spark: SparkSession) -> DataFrame:
        """Return everything that there is to read."""
        return self.job.all(spark)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of what arrives."""
        return self.job.arriving(spark, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return what has arrived, to be decided by the policy as it is now.

        Raises what reading it raises, and `RefusedError` (`pipeline.policy-changed`).
        """
        if self.watched.renew():
            before, self.job = self.job, self.make(self.watched.policies)
            if self.job.source != before.source:
                raise RefusedError(
                    "pipeline.policy-changed",
                    f"a policy that `{self.name}` goes by has changed, and what was found so far is of the one before",
                    hint="begin anew, in another folder or with --overwrite",
                )
        return self.job.arrived(batch)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Do what the job does, and say by which policies."""
        said = self.job.step(events, batch, output)
        return {**said, REVISIONS: [policy.revision for policy in self.watched.policies]}
