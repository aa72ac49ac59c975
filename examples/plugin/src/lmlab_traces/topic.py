"""Topic classification: text classification under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lmlab.tasks.classification import Classification


class Topic(Classification):
    """p(topic | text): what a text is about."""

    name = "topic"
    fields: ClassVar[Mapping[str, str]] = {"text": "the text", "label": "its topic"}
