"""Names that the shell completes, written out here because importing the modules that define them takes seconds."""

from collections.abc import Callable

FAMILY_NAMES = (
    *("word2vec", "fasttext", "glove", "nnlm", "rnn_lm", "elmo", "flair", "seq2seq", "transformer"),
    *("bert", "roberta", "xlm_roberta", "camembert", "albert", "spanbert", "distilbert", "modernbert"),
    *("gpt", "gpt2", "transformer_xl", "xlnet", "gpt-bert", "t5", "music", "performance_rnn", "ulmfit"),
    *("show_attend_tell", "image_transformer"),
)
RECIPE_NAMES = (
    *("best", "demo", "bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large"),
    *("bert-xlarge", "bert-multilingual", "roberta-tiny", "roberta-base", "roberta-large", "xlm_roberta-base"),
    *("xlm_roberta-large", "camembert-base", "camembert-large", "albert-tiny", "albert-base", "albert-large"),
    *("albert-xlarge", "albert-xxlarge", "spanbert-tiny", "spanbert-base", "spanbert-large", "distilbert-tiny"),
    *("distilbert-base", "modernbert-tiny", "modernbert-small", "modernbert-base", "modernbert-large", "mini"),
    *("gpt-tiny", "gpt-base", "gpt2-tiny", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-125m"),
    *("gpt3-350m", "gpt3-760m", "gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b"),
    *("transformer_xl-tiny", "transformer_xl-base", "transformer_xl-large", "gpt-bert-tiny", "gpt-bert-small"),
    *("xlnet-tiny", "xlnet-base", "xlnet-large", "seq2seq-tiny", "seq2seq-multi30k", "seq2seq-luong"),
    *("transformer-tiny", "transformer-multi30k", "transformer-base", "transformer-big", "t5-tiny", "t5-small"),
    *("t5-base", "t5-large", "t5-v1.1-base", "t5-3b", "t5-11b", "t5-v1.1-small", "t5-v1.1-large", "t5-v1.1-xl"),
    *("t5-v1.1-xxl", "music-tiny", "music-base", "performance_rnn-tiny", "performance_rnn-base", "nnlm-tiny"),
    *("nnlm-ap", "ulmfit-tiny", "ulmfit-lecture", "ulmfit-paper", "ulmfit-awd", "rnn_lm-tiny", "rnn_lm-small"),
    *("rnn_lm-medium", "rnn_lm-large", "word2vec-tiny", "cbow-tiny", "word2vec", "fasttext-tiny", "fasttext"),
    *("glove-tiny", "glove", "elmo-tiny", "elmo-small", "elmo-medium", "elmo-original", "flair-tiny"),
    *("flair-small", "flair", "taglm-tiny", "taglm", "show-attend-tell-tiny", "show-attend-tell-base"),
    *("image-transformer-tiny", "ngram-3", "ngram-5"),
)
TASK_NAMES = (
    *("classification", "pair_classification", "regression", "tagging", "semantic_roles", "extractive_qa"),
    *("multiple_choice", "coreference", "contrastive", "visual_qa"),
)
DATASET_NAMES = (
    *("glue/cola", "glue/sst-2", "glue/mrpc", "glue/sts-b", "glue/qqp", "glue/mnli", "glue/mnli-mm", "glue/qnli"),
    *("glue/rte", "glue/wnli", "glue/diagnostic", "snli", "sick"),
    *("superglue/boolq", "superglue/cb", "superglue/copa", "superglue/multirc", "superglue/record", "superglue/rte"),
    *("superglue/wic", "superglue/wsc", "wic", "swag", "race", "arct", "story-cloze"),
    *(
        "squad/1.1",
        "squad/2.0",
        "squad-shifts",
        "triviaqa",
        "sst-5",
        "imdb",
        "yelp-full",
        "yelp-2",
        "trec-6",
        "trec-50",
    ),
    *("conll-2003", "wnut-17", "ner", "conll-2000", "conll-2012", "ud-pos"),
    *("srl", "srl/conll-2005", "srl/conll-2012", "easy-vqa"),
)
PUBLISHED_TABLES = (
    *("glue", "glue-dev", "glue-ensembles", "bert-miniatures", "superglue", "squad-1.1", "squad-2.0", "swag"),
    *("conll-2003", "conll-2003-bert", "bert-objectives", "bert-size", "bert-masking", "elmo", "ulmfit", "albert"),
    *("roberta", "bleu", "blimp", "parameters", "albert-sizes", "elmo-sizes", "training-days"),
)
TOKENIZER_KINDS = (
    *("wordpiece", "bpe", "byte-bpe-roberta", "unigram", "unigram-roberta", "characters", "words", "whitespace"),
)


def complete(*groups: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a function that completes the start of one of these names."""

    def complete_name(incomplete: str) -> list[str]:
        return [name for group in groups for name in group if name.startswith(incomplete)]

    return complete_name
