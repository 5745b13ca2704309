"""Run the command line as `python -m polyseme`."""

from polyseme.cli.main import main

if __name__ == "__main__":
    main()
