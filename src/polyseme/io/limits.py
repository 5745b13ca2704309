"""Every limit on what is read from a file or an option, in one place: bad input must not exhaust time or memory."""

# Rows and files of text
MAX_ROW_BYTES = 64 << 20  # a longer row of a table or of JSON lines is an error
MAX_WORD_CHARS = 1_000  # tokenizers are trained on longer runs without spaces (base64, DNA) in parts

# Compressed files: a larger expansion of more bytes than that is an error, unless it is allowed
MAX_EXPANSION = 1_000
MIN_CHECKED_BYTES = 64 << 20
