"""`python -m lmlab` is the console script."""

from lmlab.cli.main import run

run()
