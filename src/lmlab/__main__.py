"""Entry point of `python -m lmlab`: the console script."""

from lmlab.cli.main import run

run()
