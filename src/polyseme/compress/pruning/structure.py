"""Physical removal of layers, attention heads and feed-forward units: a smaller config, and the weights that stay.

A stack is a Transformer trunk, or the encoder or decoder of one; it is named by the prefix of its tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from polyseme.errors import UnsupportedError
from polyseme.nn.attention.multihead import AttentionConfig, BucketedRelativeBiasConfig, NoPositionBiasConfig
from polyseme.nn.layers.block import FeedForwardConfig, TransformerBlockConfig
from polyseme.nn.model import Model, ModelConfig, build_meta
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.transformer import TransformerConfig

Sublayer = Literal["attention", "cross_attention", "ffn"]
ATTENTION_SUBLAYERS: tuple[Sublayer, ...] = ("attention", "cross_attention")
SUBLAYERS: tuple[Sublayer, ...] = (*ATTENTION_SUBLAYERS, "ffn")
Choice = Mapping[str, Sequence[int]]  # name of a sublayer's module, or prefix of a stack -> what stays of it


def list_stacks(config: ModelConfig) -> dict[str, TransformerConfig]:
    """Return the Transformer stacks of a model by the prefix of their tensors; raise if a part is something else."""
    trunk = config.trunk
    parts: dict[str, Any] = {"trunk.": trunk}
    if isinstance(trunk, EncoderDecoderConfig):
        parts = {f"trunk.{name}.": getattr(trunk, name) for name in ("encoder", "decoder") if getattr(trunk, name)}
    for prefix, stack in parts.items():
        if not isinstance(stack, TransformerConfig):
            part = prefix.removesuffix(".").replace(".", "'s ")
            reason = f"the {part} is a {type(stack).__name__.removesuffix('Config')}, which has no Transformer layers"
            raise UnsupportedError(f"layers, heads and units of {config.family} models cannot be pruned: {reason}")
    return parts


class Parts(NamedTuple):
    """The heads or units of a model: sublayers with all their names, and groups of sublayers that keep the same parts.

    With `is_uniform`, each group keeps the same number of them.
    """

    names: dict[str, list[str]]  # the first name of a sublayer's module -> all its names: blocks may share it (ALBERT)
    groups: dict[str, list[str]]  # the first sublayer of a group -> all its sublayers
    sizes: dict[str, int]  # the number of parts of each sublayer
    is_uniform: bool

    @property
    def group_sizes(self) -> dict[str, int]:
        """The number of parts of each group."""
        return {name: self.sizes[name] for name in self.groups}


def list_heads(model: Model) -> Parts:
    """Return the attention heads of a model; raise if they cannot be removed.

    The layers of a T5 stack share one table of relative positions with a column per head, so they keep the same heads.
    """
    config = model.config
    names = sublayer_names(config, ATTENTION_SUBLAYERS)
    groups = {name: [name] for name in names}
    has_shared_bias = False
    for prefix, stack in list_stacks(config).items():
        is_plain = all(isinstance(block.attention, AttentionConfig) for block in stack.block_configs)
        if not is_plain or not isinstance(stack.position_bias, NoPositionBiasConfig | BucketedRelativeBiasConfig):
            reason = "their relative positions have weights for all heads together"
            raise UnsupportedError(f"heads of {config.family} models cannot be pruned: {reason}; prune layers or ffn")
        if isinstance(stack.position_bias, BucketedRelativeBiasConfig):
            has_shared_bias = True
            first, *others = [name for name in names if name.startswith(prefix) and name.endswith(".attention")]
            groups[first] += [name for other in others for name in groups.pop(other)]
    sizes = {name: _config(model, name).num_heads for name in names}
    return Parts(names, groups, sizes, has_shared_bias)


def list_units(model: Model) -> Parts:
    """Return the feed-forward units of a model."""
    names = sublayer_names(model.config, ("ffn",))
    sizes = {name: _config(model, name).ffn_dim for name in names}
    return Parts(names, {name: [name] for name in names}, sizes, is_uniform=True)


def sublayer_names(config: ModelConfig, sublayers: Sequence[Sublayer]) -> dict[str, list[str]]:
    """Return the modules of such sublayers, each with all its names: blocks may share a sublayer (ALBERT)."""
    model = build_meta(config)
    modules = dict(model.named_modules(remove_duplicate=False))
    names: dict[int, list[str]] = {}
    for prefix, stack in list_stacks(config).items():
        for index in range(stack.num_blocks):
            for sublayer in sublayers:
                module = modules.get(name := f"{prefix}blocks.{index}.{sublayer}")
                if module is not None:
                    names.setdefault(id(module), []).append(name)
    return {group[0]: group for group in names.values()}


def select_layers(model: Model, choice: Choice) -> Model:
    """Return a model with some layers of each stack, given by its prefix; weights are copied."""
    stacks: dict[str, TransformerConfig] = {}
    sources: dict[str, str] = {}
    for prefix, stack in list_stacks(model.config).items():
        stacks[prefix], blocks = _select_layers(stack, choice[prefix])
        sources |= {f"{prefix}blocks.{new}.": f"{prefix}blocks.{old}." for new, old in enumerate(blocks)}
    state = {name: tensor for name, tensor in model.state_dict().items() if ".blocks." not in name}
    for new, old in sources.items():
        state |= {new + name.removeprefix(old): t for name, t in model.state_dict().items() if name.startswith(old)}
    return _build(model, _with_stacks(model.config, stacks), state)


def _select_layers(stack: TransformerConfig, layers: Sequence[int]) -> tuple[TransformerConfig, list[int]]:
    """Return the config of a stack with some of its layers, and the index of each block in the original stack."""
    pairs = [stack.sublayers_per_layer[i] for i in layers]
    blocks = sorted({stack.block_index_per_layer[i] for i in layers})
    attentions, ffns = (sorted(set(indices)) for indices in zip(*pairs))
    variants = stack.variant_per_block and tuple(stack.variant_per_block[i] for i in blocks)
    config = stack.replace(
        layer_to_block=tuple(attentions.index(attention) for attention, _ in pairs),
        layer_to_ffn=tuple(ffns.index(ffn) for _, ffn in pairs) if stack.layer_to_ffn else (),
        variant_per_block=variants,
    )
    return config, blocks


def select_heads(model: Model, choice: Choice) -> Model:
    """Return a model with some heads of each attention sublayer, given by the name of its module."""
    list_heads(model)  # raises if they cannot be removed

    def shrink(config: AttentionConfig, count: int, dim: int) -> AttentionConfig:
        return config.replace(num_heads=count, head_dim=config.inner_dim(dim) // config.num_heads)

    return _select_parts(model, choice, "num_heads", ("qkv", "out"), shrink)


def zero_heads(model: Model, choice: Choice) -> Model:
    """Return a model of the same shape in which the other heads add nothing: their columns of `out` are zero."""
    list_heads(model)  # raises if they cannot be removed
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for name, heads in choice.items():
        module: Any = model.get_submodule(name)
        columns, num_heads = state[f"{name}.out.weight"], module.config.num_heads
        removed = [head for head in range(num_heads) if head not in set(heads)]
        columns.view(len(columns), num_heads, -1)[:, removed] = 0
    return _build(model, model.config, state)


def select_units(model: Model, choice: Choice) -> Model:
    """Return a model with some hidden units of each feed-forward sublayer, given by the name of its module."""

    def shrink(config: FeedForwardConfig, count: int, dim: int) -> FeedForwardConfig:
        return config.replace(ffn_dim=count)

    return _select_parts(model, choice, "ffn_dim", ("up", "down"), shrink)


def _select_parts(
    model: Model, choice: Choice, size_field: str, layers: tuple[str, str], shrink: Callable[[Any, int, int], Any]
) -> Model:
    """Return a model with some parts (heads or units) of sublayers.

    `layers` are the layer whose rows belong to the parts, which may fuse several matrices, and that whose columns do.
    `shrink` returns the config of a sublayer with fewer parts, given their number and the size of a state.
    """
    state, configs = model.state_dict(), {}
    for prefix, stack in list_stacks(model.config).items():
        blocks = list(stack.block_configs)
        for index, sublayer in product(range(len(blocks)), SUBLAYERS):
            name, config = f"{prefix}blocks.{index}.{sublayer}", getattr(blocks[index], sublayer)
            if name not in choice or len(choice[name]) == getattr(config, size_field):
                continue
            size, parts = getattr(config, size_field), torch.tensor(choice[name], device=_device(model))
            module: Any = model.get_submodule(name)
            rows, columns = (f"{name}.{layer}" for layer in layers)
            for key in (f"{rows}.weight", f"{rows}.bias"):
                if key in state:
                    state[key] = _select_rows(state[key], parts, module.fused_count[layers[0]], size)
            state[f"{columns}.weight"] = _select_rows(state[f"{columns}.weight"].t(), parts, 1, size).t()
            blocks[index] = blocks[index].replace(**{sublayer: shrink(config, len(parts), stack.dim)})
        configs[prefix] = _with_blocks(stack, blocks)
        heads = choice.get(f"{prefix}blocks.0.attention")
        if isinstance(stack.position_bias, BucketedRelativeBiasConfig) and heads is not None:
            key = f"{prefix}position_bias.positions.weight"
            state[key] = state[key].index_select(1, torch.tensor(heads, device=_device(model)))
            configs[prefix] = configs[prefix].replace(position_bias=stack.position_bias.replace(num_heads=len(heads)))
    return _build(model, _with_stacks(model.config, configs), state)


def _select_rows(tensor: Tensor, parts: Tensor, fused: int, size: int) -> Tensor:
    """Return the rows of some parts of a tensor that fuses several matrices of `size` parts each."""
    grouped = tensor.reshape(fused, size, -1, *tensor.shape[1:])  # [fused, size, rows per part, …]
    return grouped.index_select(1, parts).flatten(0, 2)


def _with_blocks(stack: TransformerConfig, blocks: Sequence[TransformerBlockConfig]) -> TransformerConfig:
    """Return a stack with other configs of its blocks; unchanged if they are the same."""
    if list(blocks) == list(stack.block_configs):
        return stack
    distinct = list(dict.fromkeys(blocks))
    variants = tuple(distinct.index(block) for block in blocks) if len(distinct) > 1 else ()
    return stack.replace(block=distinct[0], block_variants=tuple(distinct[1:]), variant_per_block=variants)


def _with_stacks(config: ModelConfig, stacks: Mapping[str, TransformerConfig]) -> ModelConfig:
    if "trunk." in stacks:
        return config.replace(trunk=stacks["trunk."])
    parts = {prefix.split(".")[1]: stack for prefix, stack in stacks.items()}
    return config.replace(trunk=config.trunk.replace(**parts))


def _build(model: Model, config: ModelConfig, state: Mapping[str, Tensor]) -> Model:
    """Return a model of this config with copies of these tensors, on the device and in the precision of another."""
    pruned = build_meta(config).to(next(model.parameters()).dtype).to_empty(device=_device(model))
    pruned.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()})
    return pruned.train(model.training)


def _config(model: Model, name: str) -> Any:
    """Return the config of a sublayer."""
    module: Any = model.get_submodule(name)
    return module.config


def _device(model: Model) -> torch.device:
    return next(model.parameters()).device
