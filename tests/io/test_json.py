"""The bounded JSON parser: every bad file is one line that names it."""

import json

import pytest

from polyseme.config import override_config
from polyseme.errors import ConfigError, DataError
from polyseme.io.json import has_shape, parse_json, parse_strict, read_json, read_json_object
from polyseme.io.limits import MAX_JSON_DEPTH
from polyseme.nn.sizes import check_memory, check_sizes
from polyseme.train.recipe import BudgetConfig, Recipe

BAD_FILES = {
    "nested lists": ("[" * 100_000, "nested"),
    "nested objects": ('{"a":' * 3000 + "1" + "}" * 3000, "nested"),
    "a little too deep": ("[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1), "nested"),
    "5,000 digits": ("9" * 5000, "digits"),
    "200 digits": ('{"a": ' + "9" * 200 + "}", "200 digits"),
    "a repeated key": ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' occurs twice"),
    "a syntax error": ('{\n"a": 1,\n', "line 3"),
    "empty": ("", "line 1"),
    "not UTF-8": (b"\xff\xfe{}", "UTF-8"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(case, tmp_path):
    content, message = BAD_FILES[case]
    path = tmp_path / "x.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=f"x.json.*{message}"):
        read_json(path)


def test_size_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("polyseme.io.json.MAX_JSON_BYTES", 10)
    (tmp_path / "x.json").write_text("[1, 2, 3, 4, 5]")
    with pytest.raises(DataError, match=r"x\.json has more than"):
        read_json(tmp_path / "x.json")
    with pytest.raises(DataError, match=r"y\.json is missing"):
        read_json(tmp_path / "y.json")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(DataError, match=r"x\.json is not a JSON object"):
        read_json_object(tmp_path / "x.json")


def test_what_other_tools_write_is_read():
    value = {"model_max_length": 10**30, "text": "[[[[" * 200, "deep": json.loads("[" * 90 + "]" * 90)}
    assert parse_strict(json.dumps(value)) == value
    assert parse_json(json.dumps(value), "row 1") == value


@pytest.mark.parametrize("row", ["[" * 5000, "[" * 500 + "]" * 500, "9" * 5000, "{", '{"a": [' * 90 + "]}" * 90])
def test_bad_rows(row):
    with pytest.raises(DataError, match="row 7: malformed JSON"):
        parse_json(row, "row 7")


@pytest.mark.parametrize("path,text,message", [
    ("seed", str(2**63), "64 bits|at most 64"), ("seed", "9" * 5000, "digits"), ("optimizer.lr", "1e400", "finite"),
    ("optimizer.lr", "NaN", "finite"), ("model", "[" * 5000, "nested"),
    ("max_len", '{"a":' * 200 + "1" + "}" * 200, "nested"),
    ("objective", '{"kind": []}', "kind"), ("name", '{"a": 1, "a": 2}', "twice"),
])  # fmt: skip
def test_bad_overrides(path, text, message):
    with pytest.raises(ConfigError, match=message):
        Recipe("x", "bert").with_override(path, text)


def test_overrides_in_python():
    for value in (10**30, float("nan"), 10**400, object()):
        with pytest.raises(ConfigError, match="seed"):
            override_config(Recipe("x", "bert"), {"seed": value})
    with pytest.raises(ConfigError, match="finite"):
        override_config(Recipe("x", "bert"), {"optimizer": {"lr": float("inf")}})


@pytest.mark.parametrize("text", ["1e99steps", "1e99tokens", "1e999steps", "9" * 400 + "h", "9" * 5000 + "steps"])
def test_absurd_budgets(text):
    with pytest.raises(ConfigError) as error:
        BudgetConfig.parse(text)
    assert len(str(error.value)) < 1100


@pytest.mark.parametrize("model,message", [
    ({"num_layers": 10**7}, "num_layers is 10,000,000"), ({"num_layers": 10**18}, "num_layers"),
    ({"dim": 10**18}, "dim is"), ({"dim": 10**6, "num_heads": 10}, "GiB"), ({"num_layers": 0}, "layer"),
    ({"num_heads": 0}, "num_heads|heads"), ({"dim": -8}, "dim"), ({"max_len": 10**12}, "max_len"),
])  # fmt: skip
def test_absurd_models(model, message):
    with pytest.raises(ConfigError, match=message):
        Recipe("x", "bert", model=model).model_config(320).build(0)


def test_sizes():
    check_sizes({"labels": ["x"] * 5000, "dim": 1 << 20})
    with pytest.raises(ConfigError, match=r"trunk\.hidden_dims has 2,000 entries"):
        check_sizes({"trunk": {"hidden_dims": [1] * 2000}})
    check_memory(1000)
    with pytest.raises(ConfigError, match="10,000,000,000,000 parameters"):
        check_memory(10**13)


def test_shapes():
    shape = {"a": [int], "b": {str: float}}
    assert has_shape({"a": [1, 2], "b": {"x": 1, "y": 0.5}, "c": None}, shape)
    for value in ({"a": [1]}, {"a": [True], "b": {}}, {"a": 1, "b": {}}, {"a": [], "b": {"x": "1"}}, [], None):
        assert not has_shape(value, shape)
