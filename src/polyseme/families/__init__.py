"""Every architecture, by name."""

from polyseme.families.bert import BERT
from polyseme.families.distilbert import DISTILBERT
from polyseme.families.family import Family
from polyseme.families.gpt2 import GPT2
from polyseme.families.modern import MODERN
from polyseme.families.music import MUSIC
from polyseme.families.roberta import ROBERTA
from polyseme.families.transformer_xl import TRANSFORMER_XL
from polyseme.families.xlnet import XLNET

FAMILIES: dict[str, Family] = {
    family.name: family for family in (BERT, ROBERTA, DISTILBERT, MODERN, GPT2, TRANSFORMER_XL, XLNET, MUSIC)
}

__all__ = ["FAMILIES", "Family"]
