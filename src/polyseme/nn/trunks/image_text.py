"""Trunks that read text about an image: the tokens attend to the regions of the image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.nn.layers.regions import RegionEmbeddingsConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.base import Trunk, derived
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig


@dataclass(frozen=True)
class ImageTextConfig(EncoderDecoderConfig):
    """An encoder of image regions and a decoder of text; token embeddings and pooling are those of the decoder.

    The encoder is a Transformer over regions, or their embeddings alone.
    """

    encoder: TransformerConfig | StaticEmbeddingTrunkConfig  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.encoder.embeddings, RegionEmbeddingsConfig) or self.decoder is None:
            raise ConfigError("an image-text trunk needs an encoder of regions and a decoder")

    regions = derived(lambda self: self.encoder.embeddings, doc="The embeddings of the regions.")
    embeddings = derived(lambda self: self.decoder.embeddings, doc="The embeddings of the tokens.")
    pooler = derived(lambda self: self.decoder.pooler, doc="The pooler of the decoder.")
    causal = False  # whether there is text without an image, which there is not
    has_bounded_memory = False
    supports_static_shape = False
    depends_on_lengths = True

    def count_flops(self, lengths: Sequence[int], source_lengths: Sequence[int] = ()) -> int:
        convolutions = 6 * self.regions.matmul_params * sum(source_lengths)
        return super().count_flops(lengths, source_lengths) + convolutions

    def build(self) -> Trunk:
        return ImageText(self)


class ImageText(EncoderDecoder):
    """States of tokens that attend to the regions of an image, which is the source."""

    def check(self, inputs: Inputs, memory: Any = None, layers: Any = (), return_memory: bool = False) -> None:
        if inputs.source is None and memory is None:
            raise UnsupportedError("the model reads text about images, and there is no image")
        super().check(inputs, memory, layers, return_memory)
        if inputs.source is not None:
            self._check_regions(inputs.source.values, inputs.source.layout)

    def _check_regions(self, values: Tensor, layout: PackedLayout) -> None:
        config: RegionEmbeddingsConfig = self.config.regions
        if values.ndim != 2 or values.shape[1] != config.input_dim:
            shape = " × ".join(map(str, values.shape))
            raise DataError(f"regions are {shape}, but the model reads {config.input_dim} values for each")
        for length in set(layout.lengths):
            if length > config.max_len or not length or (length < config.max_len and not config.has_boxes):
                expected = f"{'1 to ' * config.has_boxes}{config.max_len}"
                raise DataError(f"an image has {length} regions, but the model reads {expected}")

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        return self.decoder.pool(hidden, layout)
