"""A data set of a user's own, in one file outside the package."""

from polyseme.datasets.base import NamedDataset, task_reader
from tests.support.toy_task import StarTask


def share_of_best(examples, predictions):
    return {"best": sum(p == 3 for p in predictions) / len(examples)}


REVIEWS = NamedDataset(
    StarTask,
    "closeness",
    "how many stars?",
    "reviews",
    task_reader(StarTask),
    {"train": "train.txt", "dev": "dev.txt"},
    share_of_best,
)
