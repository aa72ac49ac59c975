"""What memories between layers find (`Recalled.found`), by name, so that objectives learn from it.

Of a view with M mentions and N entities known:
"""

from __future__ import annotations

TAGS = "tags"
"""(B, T, 3) log p(outside, begins, goes on) of each place: where mentions are."""
MENTIONS = "mentions"
"""(M, 3) the row, the first and the last place of each mention that was looked up."""
ENTITIES = "entities"
"""(M, N) log p(entity) of each mention."""
ASKED = "asked"
"""(M,) bool: the Q mentions that are hidden, for which facts are looked up."""
FACTS = "facts"
"""(Q, F + 1) log p(fact) of each hidden mention, the null fact last."""
SUPPORTED = "supported"
"""(Q, F + 1) bool: the facts that the text speaks for, as far as its mentions are told."""
ANSWERS = "answers"
"""(Q, N) log p(entity) of each hidden mention, facts counted in."""
