"""All experiments, in the order of the papers."""

from typing import Final

from penstock.errors import MalformedError, did_you_mean
from penstock.simulate.experiments import capabilities, data_centric, moderator, pubsub, revocation
from penstock.simulate.experiments.experiment import Experiment

CATALOGUE: Final[tuple[Experiment, ...]] = (
    *moderator.EXPERIMENTS,
    *pubsub.EXPERIMENTS,
    *data_centric.EXPERIMENTS,
    *capabilities.EXPERIMENTS,
    *revocation.EXPERIMENTS,
)


def find_experiments(names: tuple[str, ...]) -> list[Experiment]:
    """Return the experiments of these names; `all` stands for all. Raises `MalformedError` (`experiment.unknown`)."""
    by_name = {one.name: one for one in CATALOGUE}
    unknown = next((name for name in names if name != "all" and name not in by_name), None)
    if unknown is not None:
        raise MalformedError(
            "experiment.unknown",
            f"there is no experiment `{unknown}`",
            hint=did_you_mean(unknown, [*by_name, "all"]) or "run `penstock experiment list`",
        )
    return [one for one in CATALOGUE if "all" in names or one.name in names]
