"""What `cluster` gives to spark-submit: `anywhere`, with a path to the tests that executors do not get."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if __name__ == "__main__":
    runpy.run_module("tests.pipeline.anywhere", run_name="__main__", alter_sys=True)
