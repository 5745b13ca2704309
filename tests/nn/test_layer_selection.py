"""One meaning of each layer selection, for embeddings and for features."""

import pytest
import torch

from polyseme.errors import ConfigError
from polyseme.nn.layer_selection import LAYER_SELECTIONS, LayerSelection

TWELVE = {
    "embeddings": [0],
    "last": [12],
    "second_to_last": [11],
    "sum_last_4": [9, 10, 11, 12],
    "concat_last_4": [9, 10, 11, 12],
    "sum_all": list(range(1, 13)),  # the lectures' sum: without the embeddings
    "scalar_mix": list(range(13)),  # ELMo's: with them
    "scalar_mix_last_4": [9, 10, 11, 12],
    "all": list(range(13)),
}


def test_the_layers_of_each_name():
    assert set(TWELVE) == set(LAYER_SELECTIONS)
    for name, indices in TWELVE.items():
        assert LayerSelection.parse(name).indices(12) == indices
    assert LayerSelection.parse(7).indices(12) == LayerSelection.parse("7").indices(12) == [7]


@pytest.mark.parametrize(
    "name,num_layers", [("sum_last_4", 3), ("concat_last_4", 2), ("second_to_last", 1), ("sum_all", 0), ("5", 4)]
)
def test_too_few_layers(name, num_layers):
    with pytest.raises(ConfigError, match=f"but the model has {num_layers}"):
        LayerSelection.parse(name).indices(num_layers)


def test_tables_and_characters():
    assert LayerSelection.parse("last").indices(0) == LayerSelection.parse("embeddings").indices(0) == [0]
    assert LayerSelection.parse("scalar_mix").indices(2, has_embeddings=False) == [1, 2]
    with pytest.raises(ConfigError, match="reads characters"):
        LayerSelection.parse("embeddings").indices(2, has_embeddings=False)


def test_combining():
    states = [torch.full((3, 2), float(i)) for i in range(1, 5)]
    assert torch.equal(LayerSelection.parse("sum_last_4").combine(states), torch.full((3, 2), 10.0))
    assert LayerSelection.parse("concat_last_4").combine(states).shape == (3, 8)
    assert LayerSelection.parse("all").combine(states).shape == (3, 4, 2)
    with pytest.raises(ConfigError, match="a task learns"):
        LayerSelection.parse("scalar_mix").combine(states)
    with pytest.raises(ConfigError, match="dimensions"):
        LayerSelection.parse("sum_last_4").combine([*states, torch.zeros(3, 5)])
    with pytest.raises(ConfigError, match="did you mean 'sum_last_4'"):
        LayerSelection.parse("sum_last4")
