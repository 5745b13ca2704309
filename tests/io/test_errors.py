"""The error classes: their hierarchy, and pickling."""

import pickle
import signal

import pytest

import polyseme
from polyseme.errors import ConfigError, DataError, Interrupted, ModelError, PolysemeError, UnsupportedError


@pytest.mark.parametrize("cls", [ConfigError, DataError, ModelError, UnsupportedError])
def test_message_is_one_line_and_survives_pickling(cls):
    error = cls("what is\n  wrong")
    assert str(error) == "what is wrong" and isinstance(error, PolysemeError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls and str(copy) == str(error)


def test_only_config_and_data_errors_are_value_errors():
    assert issubclass(ConfigError, ValueError) and issubclass(DataError, ValueError)
    assert not issubclass(ModelError, ValueError) and not issubclass(UnsupportedError, ValueError)


def test_interrupted_keeps_its_signal():
    copy = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM, 7)))
    assert copy.signum == signal.SIGTERM and copy.step == 7 and "step 7" in str(copy)


def test_errors_are_public():
    for name in ("PolysemeError", "ConfigError", "DataError", "ModelError", "UnsupportedError", "Interrupted"):
        assert name in polyseme.__all__ and issubclass(getattr(polyseme, name), Exception)
