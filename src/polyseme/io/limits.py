"""Every limit on what is read from a file or an option, in one place: bad input must not exhaust time or memory."""

# Rows and files of text
MAX_ROW_BYTES = 64 << 20  # a longer row of a table or of JSON lines is an error
MAX_WORD_CHARS = 1_000  # tokenizers are trained on longer runs without spaces (base64, DNA) in parts

# Compressed files: a larger expansion of more bytes than that is an error, unless it is allowed
MAX_EXPANSION = 1_000
MIN_CHECKED_BYTES = 64 << 20

# JSON
MAX_JSON_BYTES = 512 << 20  # size of a JSON file of ours
MAX_JSON_DEPTH = 100  # nested lists and objects
MAX_INTEGER_DIGITS = 100  # `transformers` writes integers of 31 digits
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1  # of settings

# Model folders
MAX_HASHED_WEIGHT_BYTES = 4 << 20  # larger files of weights are hashed only on request: it takes longer than loading
MAX_LAYERS = 1024  # of a model, and of each of its stacks
MAX_SIZE = 1 << 28  # any other integer of a model's config: dimensions, vocabulary, positions

# Tokenizers
MAX_VOCAB_SIZE = 10_000_000
MAX_PATTERN_SECONDS = 5.0  # time for a probe text, if a tokenizer has a regular expression of its own

# Training and decoding
MAX_BATCH_TOKENS = 1 << 30  # of a step
MAX_MICRO_BATCH_TOKENS = 1 << 26  # computed at once
MAX_EPOCHS = 10**6
MAX_SEEDS = 10**4
MAX_RESAMPLES = 10**7  # of a bootstrap
MAX_SEQUENCES = 10**5  # beams, or texts generated from one prompt
MAX_STEPS = 10**10
MAX_TOKENS = 10**16
MAX_MINUTES = 10**7  # 19 years
