"""All architectures by name."""

from collections.abc import Sequence

from polyseme.errors import ConfigError, unsupported
from polyseme.families.albert import ALBERT
from polyseme.families.bert import BERT
from polyseme.families.captioning import IMAGE_TRANSFORMER, SHOW_ATTEND_TELL
from polyseme.families.distilbert import DISTILBERT
from polyseme.families.elmo import ELMO
from polyseme.families.family import Family
from polyseme.families.flair import FLAIR
from polyseme.families.gpt import GPT
from polyseme.families.gpt2 import GPT2
from polyseme.families.gpt_bert import GPT_BERT
from polyseme.families.modernbert import MODERNBERT
from polyseme.families.music import MUSIC
from polyseme.families.nnlm import NNLM
from polyseme.families.rnn_lm import PERFORMANCE_RNN, RNN_LM
from polyseme.families.roberta import ROBERTA
from polyseme.families.seq2seq import SEQ2SEQ
from polyseme.families.spanbert import SPANBERT
from polyseme.families.t5 import T5
from polyseme.families.transformer import TRANSFORMER
from polyseme.families.transformer_xl import TRANSFORMER_XL
from polyseme.families.ulmfit import ULMFIT
from polyseme.families.word_vectors import FASTTEXT, GLOVE, WORD2VEC
from polyseme.families.xlm_roberta import CAMEMBERT, XLM_ROBERTA
from polyseme.families.xlnet import XLNET

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(WORD2VEC, FASTTEXT, GLOVE),
        *(NNLM, RNN_LM, ELMO, FLAIR),
        *(SEQ2SEQ, TRANSFORMER),
        *(BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, SPANBERT, DISTILBERT, MODERNBERT),
        *(GPT, GPT2, TRANSFORMER_XL, XLNET, GPT_BERT),
        *(T5, MUSIC, PERFORMANCE_RNN),
        ULMFIT,
    )
}
# Families that read images. They are not in `FAMILIES`, which all read text alone.
IMAGE_FAMILIES: dict[str, Family] = {family.name: family for family in (SHOW_ATTEND_TELL, IMAGE_TRANSFORMER)}
ALL_FAMILIES: dict[str, Family] = FAMILIES | IMAGE_FAMILIES


def get_family(name: str, families: Sequence[Family] = ()) -> Family:
    """Return the family of this name, from `families` or the package."""
    known = ALL_FAMILIES | {family.name: family for family in families}
    if name not in known:
        raise ConfigError(f"family {unsupported(name, known)}")
    return known[name]


def text_start_id(family: str, boundaries: tuple[int | None, int | None]) -> int | None:
    """Return the id that precedes a text for a causal model of this family, of the ids before and after a text."""
    start, end = boundaries
    starts_after_end = family in FAMILIES and FAMILIES[family].text_start == "eos" and end is not None
    return end if starts_after_end else start


__all__ = ["ALL_FAMILIES", "FAMILIES", "IMAGE_FAMILIES", "Family", "get_family", "text_start_id"]
