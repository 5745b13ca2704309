"""The logit lens: what each layer of a language model would predict (nostalgebraist 2020)."""

from polyseme.explain.logit_lens.page import explain_logit_lens

__all__ = ["explain_logit_lens"]
