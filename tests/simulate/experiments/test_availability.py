"""Requests fail in the simulation exactly where nobody who has the object works."""

from itertools import islice, pairwise
from random import Random

import pytest

from penstock.authority.decisions.enforcement_point import AskPath
from penstock.simulate.experiments.availability import AvailabilityCase, failed_requests, points_of, working_times
from penstock.simulate.experiments.role_policies import RandomRolePolicy

REQUESTS = 60


def naive(case: AvailabilityCase) -> int:
    """Count requests about objects whose points have all failed."""
    points = points_of(case)
    questions = islice(RandomRolePolicy(case.seed, objects=case.objects).questions(), case.requests)
    return sum(
        not any(works[number] and question.resource.id in objects for objects, works in points)
        for number, question in enumerate(questions)
    )


@pytest.mark.parametrize(("points", "overlap"), [(1, 0.5), (3, 0.0), (3, 0.5), (2, 1.0)])
def test_requests_fail_where_nobody_works_that_has_the_object(points: int, overlap: float) -> None:
    case = AvailabilityCase(points, overlap, seed=5, requests=REQUESTS, objects=20)
    alone = failed_requests(case, AskPath.DIRECT)
    assert alone == naive(AvailabilityCase(1, 0, seed=5, requests=REQUESTS, objects=20)) > 0
    assert failed_requests(case, AskPath.FABRIC) == naive(case)


def test_points_work_ten_times_as_long_as_they_fail() -> None:
    works = working_times(Random(1), 200_000)  # noqa: S311  # the same each time
    assert sum(works) / len(works) == pytest.approx(10 / 11, abs=0.01)
    changes = [n for n in range(1, len(works)) if works[n] != works[n - 1]]
    lengths = {True: [0], False: [0]}
    for start, end in pairwise(changes):
        lengths[works[start]].append(end - start)
    assert (max(lengths[True]), max(lengths[False])) == (500, 50)
