"""The error classes: their hierarchy, pickling, and suggestions of valid names."""

import pickle
import signal
import sys
import tomllib
from pathlib import Path

import pytest

import polyseme
from polyseme.errors import (
    EXTRA_OF_PACKAGE,
    ConfigError,
    DataError,
    Interrupted,
    ModelError,
    PolysemeError,
    UnsupportedError,
    require_packages,
    suggest,
    unsupported,
)


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


@pytest.mark.parametrize(
    "name,valid,hint",
    [
        ("contol", ["control", "nfc"], "did you mean 'control'?"),
        ("txet", ["text", "title"], "did you mean 'text'?"),  # one swap
        ("BERT-tiny", ["bert-tiny", "bert-base"], "did you mean 'bert-tiny'?"),
        ("cola", ["glue/cola", "glue/rte"], "did you mean 'glue/cola'?"),
        ("text_column", ["label", "text"], "did you mean 'text'?"),
        ("acc", ["accuracy", "f1"], "did you mean 'accuracy'?"),
        ("electra", ["albert", "xlnet", "t5"], "valid: albert, t5, xlnet"),
        ("classify", ["tagging", "multiple_choice"], "valid: multiple_choice, tagging"),
        ("Y", ["O", "X"], "valid: O, X"),
        ("a", [], "there is none"),
    ],
)
def test_suggestions_are_misspelled_or_related_names(name, valid, hint):
    assert suggest(name, valid) == hint


def test_an_unsupported_name_is_not_taken_for_a_misspelled_one():
    assert unsupported("bart", ["gpt", "bert"]) == "'bart' is not supported; supported: bert, gpt"


def test_missing_packages_are_found_without_importing_any(monkeypatch):
    before = set(sys.modules)
    require_packages({"scipy": "a test", "matplotlib": "a plot"})
    assert not {"scipy", "matplotlib"} & (set(sys.modules) - before)
    for module in ("scipy", "matplotlib"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=r"^a plot needs matplotlib: pip install 'polyseme\[report\]'$"):
        require_packages({"json": "nothing", "matplotlib": "a plot", "scipy": "a test"})


def test_extras_are_those_of_the_package():
    metadata = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    names = {"scikit-learn": "sklearn", "rouge-score": "rouge_score", "pillow": "PIL"}
    for extra, requirements in metadata["project"]["optional-dependencies"].items():
        for requirement in requirements if extra not in ("all", "dev") else ():
            package = requirement.partition(">")[0]
            assert EXTRA_OF_PACKAGE[names.get(package, package)] == extra
