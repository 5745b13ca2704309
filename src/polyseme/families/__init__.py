"""Every architecture, by name."""

from polyseme.families.bert import BERT
from polyseme.families.distilbert import DISTILBERT
from polyseme.families.family import Family
from polyseme.families.gpt2 import GPT2
from polyseme.families.roberta import ROBERTA

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, ROBERTA, DISTILBERT, GPT2)}

__all__ = ["FAMILIES", "Family"]
