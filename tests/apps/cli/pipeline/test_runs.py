"""Reports of a stream use the policy as it is when they are made."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pipeline.jobs_plant import build_revocable, revoke
from tests.trust.kit import NOW, refused

from penstock.apps.cli.pipeline import runs as pipeline_runs
from penstock.apps.cli.pipeline.runs import AuditRun, policy_now
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.jobs.reports import ReportOptions

SESSION: Any = SimpleNamespace(now=NOW)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return build_revocable(tmp_path / "plant")


def test_each_report_of_a_stream_goes_by_the_policy_as_it_is(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def batches(_job: object, _on: object, _place: object, on_batch: Callable[[], None]) -> None:
        on_batch()
        revoke(policy.parent, 5, "statistics")
        on_batch()
        (policy.parent / "owner.chain").unlink()
        on_batch()

    def audited(_spark: object, _path: str, policy: PipelinePolicy | None, _question: ReportOptions) -> Any:
        assert policy is not None
        made.append(policy.revision)

    monkeypatch.setattr(pipeline_runs, "execute", batches)
    monkeypatch.setattr(pipeline_runs, "audited", audited)
    somewhere: Any = SimpleNamespace(out="out", spark=None)
    with refused("file.missing"):
        run = AuditRun(policy_now(str(policy), SESSION), ReportOptions(), lambda _made: None)
        run.run(somewhere, somewhere, somewhere)
    first, second = made
    assert first != second


def test_who_gives_no_policy_has_none() -> None:
    assert policy_now(None, SESSION)() is None
