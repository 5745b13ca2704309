"""Every architecture, by name."""

from polyseme.families.albert import ALBERT
from polyseme.families.bert import BERT
from polyseme.families.family import Family
from polyseme.families.gpt2 import GPT2
from polyseme.families.spanbert import SPANBERT

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, GPT2, ALBERT, SPANBERT)}

__all__ = ["FAMILIES", "Family"]
