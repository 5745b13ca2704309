"""Every architecture, by name."""

from polyseme.families.bert import BERT
from polyseme.families.family import Family
from polyseme.families.gpt2 import GPT2
from polyseme.families.modern import MODERN
from polyseme.families.transformer_xl import TRANSFORMER_XL
from polyseme.families.xlnet import XLNET

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, GPT2, MODERN, TRANSFORMER_XL, XLNET)}

__all__ = ["FAMILIES", "Family"]
