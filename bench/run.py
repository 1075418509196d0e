"""Run the benchmarks: `python bench/run.py [name]`. Writes bench/results.json and prints a table.

Each `bench_*.py` beside this file has `run() -> list[Result]`; `name` picks the files or results that contain it. A
`draft_*.py` runs only when it is named: what it measures does not reach its targets yet.
"""

import importlib.util
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import Result  # noqa: E402  # the folder of this script must be on the path first


def load(path: Path) -> list[Result]:
    """Run one benchmark file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results: list[Result] = module.run()
    return results


def main(only: str) -> int:
    """Run what is asked for; the exit status is 1 when a target is missed."""
    files = sorted(HERE.glob("bench_*.py"))
    drafts = sorted(HERE.glob("draft_*.py")) if only else []
    chosen = [path for path in (*files, *drafts) if only in path.stem] or files
    console = Console()
    results: list[Result] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("benchmarks", total=len(chosen))
        for path in chosen:
            progress.update(task, description=path.stem)
            results += load(path)
            progress.advance(task)
    if only and not any(only in path.stem for path in (*files, *drafts)):
        results = [result for result in results if only in result.name]
    if not results:
        console.print(f"no benchmark is called `{only}`; there are: {', '.join(p.stem[6:] for p in files)}")
        return 2
    (HERE / "results.json").write_text(json.dumps([result.as_dict() for result in results], indent=2) + "\n")
    table = Table("benchmark", "ratio", "target", "", "detail")
    for result in results:
        mark = "[green]ok[/]" if result.ok else "[red]missed[/]"
        table.add_row(result.name, f"{result.ratio:.3f}", result.target, mark, result.detail)
    console.print(table)
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
