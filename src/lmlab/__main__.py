"""Entry point of `python -m lmlab`: the console script."""

from lmlab.cli.main import run
from lmlab.core.child_processes import end_with_parent

end_with_parent()
run()
