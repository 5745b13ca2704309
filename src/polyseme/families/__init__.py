"""Every architecture, by name."""

from polyseme.families.bert import BERT
from polyseme.families.family import Family
from polyseme.families.gpt import GPT
from polyseme.families.gpt2 import GPT2
from polyseme.families.modern import MODERN

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, GPT, GPT2, MODERN)}

__all__ = ["FAMILIES", "Family"]
