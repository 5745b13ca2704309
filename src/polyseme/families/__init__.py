"""Every architecture, by name."""

from polyseme.families.bert import BERT
from polyseme.families.family import Family
from polyseme.families.gpt2 import GPT2
from polyseme.families.t5 import T5
from polyseme.families.transformer import TRANSFORMER

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, GPT2, T5, TRANSFORMER)}

__all__ = ["FAMILIES", "Family"]
