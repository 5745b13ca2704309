"""Count the characters of a part of a corpus, so that losses of models with different tokenizers can be compared."""

import numpy as np

from polyseme.corpus.inspect.contamination import piece_bytes
from polyseme.corpus.sampling import count_tokens
from polyseme.corpus.store import Corpus
from polyseme.text.tokenizer import Tokenizer


def characters_per_token(corpus: Corpus, subset: Corpus, tokenizer: Tokenizer) -> float | None:
    """Return the number of characters of a subset's text for each of its tokens; None if the corpus did not count them.

    The characters of the whole corpus are known. Those of the subset are its share of the characters of all tokens,
    which is exact for tokens that contain their spaces, and accurate to about 0.5 % for others (WordPiece).
    """
    num_characters = corpus.manifest["counts"].get("characters", 0)
    lengths = np.array([sum(byte & 0xC0 != 0x80 for byte in piece) for piece in piece_bytes(tokenizer)])
    total, part = (int(count_tokens(each, len(lengths)) @ lengths) for each in (corpus, subset))
    return num_characters * part / total / subset.num_tokens if num_characters and total and part else None
