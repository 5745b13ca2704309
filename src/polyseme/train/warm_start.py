"""Initial models for continued pre-training, on the text of a domain or of a task (ULMFiT's second stage)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.corpus.captions import region_format
from polyseme.corpus.store import Corpus
from polyseme.errors import DataError, ModelError, suggest
from polyseme.families import get_family
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import InitialModel
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import ModelFolder, hash_weights, load_model


def init_from_model(path: Path, recipe: Recipe, corpus_path: Path) -> InitialModel:
    """Return the recipe's model with the weights of a folder, which must have the same family, sizes and vocabulary.

    Settings that are not weights, such as dropout, are the recipe's. From a folder of word vectors, the embeddings of
    tokens that are whole words are copied.
    """
    folder = load_model(path)
    saved_config = folder.model.config
    family = get_family(recipe.family)
    if _is_static(saved_config.trunk) and not _is_static(family.model_config().trunk):
        return _init_from_word_vectors(folder, recipe, corpus_path)
    if saved_config.family != recipe.family:
        raise ModelError(f"{path} is of the family {saved_config.family}, but {recipe.name} is for {recipe.family}")
    tokenizer = Tokenizer.load(corpus_path / "tokenizer").with_cls_position(family.cls_position)
    if folder.tokenizer.hash != tokenizer.hash:
        raise DataError(f"{corpus_path} has another vocabulary than {path}: prepare it with the tokenizer of {path}")
    regions = region_format(Corpus.open(corpus_path))
    model = recipe.check().model_config(tokenizer.vocab_size, regions=regions).build(recipe.seed)
    saved_state, state = folder.model.state_dict(), model.state_dict()
    for name, tensor in state.items():
        if name not in saved_state:
            raise ModelError(f"{path} has no {name}, which {recipe.name} trains; {suggest(name, saved_state)}")
        if saved_state[name].shape != tensor.shape:
            sizes = f"{tuple(tensor.shape)} in {recipe.name} and {tuple(saved_state[name].shape)} in {path}"
            raise ModelError(f"{name} is {sizes}: give the recipe the sizes of the model")
    if unexpected := [n for n in saved_state if n not in state and n.startswith("trunk.")]:
        raise ModelError(f"{path} has {unexpected[0]}, which {recipe.name} lacks: give the recipe the model's sizes")
    model.load_state_dict({name: saved_state[name] for name in state})
    return InitialModel(model, _provenance(path))


def _init_from_word_vectors(folder: ModelFolder, recipe: Recipe, corpus_path: Path) -> InitialModel:
    """Return the recipe's model with word vectors as the embeddings of tokens that are whole words.

    The vectors are scaled to the size of the embeddings they replace, for which the weights above them are initialized.
    Of two vocabularies it is the source's.
    """
    path, tokenizer, word_tokenizer = folder.path, Tokenizer.load(corpus_path / "tokenizer"), folder.tokenizer
    target_tokenizer = Tokenizer.load(corpus_path / "target") if (corpus_path / "target").is_dir() else None
    vocab_sizes = tokenizer.vocab_size, target_tokenizer.vocab_size if target_tokenizer else 0
    regions = region_format(Corpus.open(corpus_path))
    model = recipe.check().model_config(*vocab_sizes, regions=regions).build(recipe.seed)
    trunk: Any = model.trunk
    reader = trunk if regions else getattr(trunk, "encoder", trunk)
    table, vectors = reader.token_embeddings, folder.model.trunk.token_embeddings
    if not isinstance(table, Tensor) or not isinstance(vectors, Tensor) or table.shape[1] != vectors.shape[1]:
        raise ModelError(
            f"the vectors of {path} have {folder.model.config.trunk.dim} dimensions, but those of {recipe.name} "
            f"{table.shape[1] if isinstance(table, Tensor) else 'are no table'}: set model.dim, or model.embedding_dim"
        )
    word_ids = [i for i in range(word_tokenizer.vocab_size) if i not in word_tokenizer.all_special_ids]
    words = [word_tokenizer.vocabulary[i] for i in word_ids]
    # encoded after another word, "a", which is left out again
    token_ids, word_of_token = (np.array(part) for part in tokenizer.encode_words(["a", *words]))
    num_tokens = np.bincount(word_of_token, minlength=len(words) + 1)[word_of_token]
    is_whole_word = (num_tokens == 1) & (word_of_token > 0)
    if not is_whole_word.any():
        raise DataError(f"no token of {corpus_path} is a word of {path}")
    vocab_rows, first_index = np.unique(token_ids[is_whole_word], return_index=True)  # the first word of each token
    vector_rows = np.array(word_ids)[word_of_token[is_whole_word][first_index] - 1]
    with torch.no_grad():
        chosen_vectors = vectors.index_select(0, torch.from_numpy(vector_rows))
        table.index_copy_(0, torch.from_numpy(vocab_rows), chosen_vectors * (table.std() / chosen_vectors.std()))
    return InitialModel(model, _provenance(path))


def _is_static(trunk: TrunkConfig) -> bool:
    return isinstance(trunk, StaticEmbeddingTrunkConfig)


def _provenance(path: Path) -> dict[str, str]:
    return {"initialized_from": str(path), "initialized_from_hash": hash_weights(path)}
