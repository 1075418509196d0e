"""Ten million rules on Spark, against a million: `python bench/soak_conflicts.py`. Part of `make soak`."""

import sys

from bench_conflicts import RULES, measure


def main() -> int:
    """Print the figures; the exit status is 1 when a target is missed."""
    results = measure("conflicts-soak", 10 * RULES, "10g")
    for result in results:
        print(f"{result.name}: {result.ratio:.3f} ({result.target}) {'ok' if result.ok else 'missed'}; {result.detail}")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
