"""Neural probabilistic language model (Bengio et al. 2003): the next word from a window of word vectors."""

from polyseme.families import hf
from polyseme.families.family import TEXT_TOKENIZERS, Family, linear_task_head
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.trunks.shallow import FeedForwardLMConfig


def trunk_config(
    dim: int = 100,
    hidden_dim: int = 60,
    window: int = 5,
    vocab_size: int = 17_964,
    max_len: int = 1 << 20,
    direct_connections: bool = False,
    dropout: float = 0.0,
    init_std: float = 0.05,
) -> FeedForwardLMConfig:
    """A hidden layer over the previous words; `window` is the paper's n − 1, `dim` its m, `hidden_dim` its h (§2)."""
    return FeedForwardLMConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, position_embedding_type="none"),
        window,
        hidden_dim,
        direct_connections,
        dropout,
        init=InitConfig(init_std),
    )


def pretraining_heads(config: FeedForwardLMConfig) -> dict[str, HeadConfig]:
    """Return the head b + U tanh(d + Hx) and, with direct connections, + Wx: one matrix over the state (eq. 1)."""
    return {"next": LMHeadConfig(config.embeddings.vocab_size, bias=True, tie_word_embeddings=False)}


HF_ROWS = (
    *hf.required("dim", "hidden_dim", "window", "vocab_size", "max_len"),
    *hf.choices(direct_connections=(False, True)),
    *hf.optional("dropout", initializer_range="init_std"),
)

NNLM = Family(
    name="nnlm",
    paper="Bengio et al. 2003, A Neural Probabilistic Language Model",
    tokenizer="bpe",
    other_tokenizers=TEXT_TOKENIZERS,
    objective="causal LM",
    trunk_config=trunk_config,
    sizes={"tiny": {"dim": 64, "hidden_dim": 128, "window": 5}, "ap": {"dim": 100, "hidden_dim": 60, "window": 5}},
    pretraining_heads=pretraining_heads,
    task_head=linear_task_head("dropout"),
    hf_config=hf.ConfigTable("nnlm", trunk_config, HF_ROWS, {"dim": "embeddings.dim", "dropout": "dropout"}),
    architectures=hf.architectures("NNLM", ForCausalLM=("next",)),
    head_weight_maps={"next": hf.same_names("heads.next.bias", "heads.next.decoder.weight"), **hf.NATIVE_LABEL_HEADS},
    departures=(
        "The vocabulary has subwords; the paper uses the words of AP News (17,964) or of the Brown corpus.",
        "The window is padded with zeros before the first token of a text.",
        "AdamW instead of stochastic gradient ascent; the paper's mixture with a trigram model is not included.",
    ),
)
