"""Chinese characters, each of which is a word to a model of characters."""

from __future__ import annotations

import re

IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
