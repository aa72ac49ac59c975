"""The page runner detects wrong output and failing commands."""

from __future__ import annotations

import pytest

from .page_runner import Block, blocks_of, lines_missing, run_page

PAGE = """
```python
print("loss 2.50 after 1,000 steps")
```

```text
loss 2.50 … steps
```
"""


def test_blocks_are_parsed_with_kind_and_code():
    assert blocks_of(PAGE) == [
        Block("python", 'print("loss 2.50 after 1,000 steps")\n'),
        Block("text", "loss 2.50 … steps\n"),
    ]


def test_page_with_matching_output_passes():
    [(block, printed)] = run_page(PAGE)
    assert (block.kind, printed) == ("python", "loss 2.50 after 1,000 steps\n")


@pytest.mark.parametrize(
    ("kind", "line", "missing"),
    [
        ("text", "loss   2.5 after 1000 steps", False),
        ("text", "loss 2.51 after 1,000 steps", True),
        ("text about", "loss 2.51 after 1,000 steps", False),
        ("text about", "loss 2.90 after 1,000 steps", True),
        ("text", "loss 2.50 after … steps", False),
        ("text", "gain 2.50 after 1,000 steps", True),
        ("text", "loss 2.50", True),
    ],
)
def test_shown_lines_are_compared_with_the_output(kind: str, line: str, missing: bool):
    missing_lines = lines_missing(Block(kind, line), "before\nloss 2.50 after 1,000 steps\n")
    assert missing_lines == ([line] if missing else [])


def test_failing_command_fails_the_page():
    wrong = "lmlab train nothing-of-that-name --data grammar --out run"
    with pytest.raises(AssertionError, match="there is no system"):
        run_page(f"```bash\n{wrong}\n```\n")
    [(_, printed)] = run_page(
        f"```bash fails\n{wrong}\n```\n\n```text\nlmlab: there is no …\n```\n"
    )
    assert printed.startswith("lmlab: there is no system called 'nothing-of-that-name'")
