"""``python -m llmtop``: the command line without the terminal view."""

from llmtop.cli.app import main

if __name__ == "__main__":
    raise SystemExit(main())
