"""The notebook of the receipt example runs, on the few tasks that come with it."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.jobs_plant import interpreted

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "receipt"


def test_the_notebook_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.delenv("PENSTOCK_SUITES", raising=False)
    cells = json.loads((FOLDER / "receipt.ipynb").read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, object] = {}
    with interpreted(spark):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), namespace)  # noqa: S102  # our own example
    printed = capsys.readouterr().out
    assert "case-2" in printed
    assert "task-5" in printed
    assert "right 1 shows it" in printed
    assert "Experts events gains 0 loses 2" in printed
