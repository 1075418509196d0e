"""A process of an experiment: `python -m penstock.apps.experiment_process ROLE WORD…`. It says when it is ready."""

import sys

from penstock.apps.answer_links import AnswerLinks
from penstock.simulate.experiments.roles import play

if __name__ == "__main__":
    play(sys.argv[1:], links=lambda key, owner: AnswerLinks(key, owner, "127.0.0.1"))
