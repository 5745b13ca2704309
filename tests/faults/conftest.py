"""Inputs of all commands that write."""

import pytest

from tests.faults.writers import Inputs


@pytest.fixture(scope="session")
def inputs(project, tiny_folders, tmp_path_factory) -> Inputs:
    """What the commands read."""
    return Inputs(project, tiny_folders, tmp_path_factory.mktemp("inputs"))
