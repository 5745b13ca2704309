"""Every limit on what is read from a file or an option, in one place: bad input must not exhaust time or memory."""

# Rows and files of text
MAX_ROW_BYTES = 64 << 20  # a longer row of a table or of JSON lines is an error
