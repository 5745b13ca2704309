"""`python -m polyseme`, for a source tree that is not installed."""

from polyseme.cli.main import main

if __name__ == "__main__":
    main()
