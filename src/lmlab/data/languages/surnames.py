"""Softmax-bottleneck test (我的姓是 张, 李, 胡 or 王): contexts with several equally likely words.

    p(text) = 1 / (contexts · words of this one)

The sets overlap: 张李胡王 must be equally near to 我的姓是, 王帝侯爵 to 他的爵位是, 桃李果杏 to
树上结的是, and 王 and 李 pull their other words together (multi-mode distributions, Chang and
McCallum 2022). Each of sixteen contexts has four equally likely words; many words end two.
"""

from __future__ import annotations

from functools import cache

from lmlab.data.corpus import Corpus
from lmlab.data.languages._sampled_corpus import TRAIN_SENTENCES, FiniteTruth, sampled_corpus

DESCRIPTION = "sentences that several words end equally well: 我的姓是张, 李, 胡 or 王"

ENDINGS = {
    "我的姓是": "张李胡王",
    "他的爵位是": "王帝侯爵",
    "树上结的是": "桃李果杏",
    "墙的颜色是": "黄白红青",
    "邻居姓": "黄白马金",
    "圈里养的是": "马牛羊鹿",
    "矿里出的是": "金银铜铁",
    "现在的季节是": "春夏秋冬",
    "老师姓": "夏云牛江",
    "天上有": "日月星云",
    "山下有": "江河湖海",
    "大门朝": "东南西北",
    "棋盘上有": "马车炮帅",
    "军中有": "帅将兵侯",
    "园里种的是": "桃杏梅兰",
    "她名叫": "梅兰春月",
}
"""Each context, and the words (one character each) that may end it."""


@cache
def truth() -> FiniteTruth:
    """The true distribution; a token is a character."""
    derivations = (
        (context + word, 1 / (len(ENDINGS) * len(words)))
        for context, words in ENDINGS.items()
        for word in words
    )
    return FiniteTruth(derivations, count_tokens=len)


def corpus(seed: int = 0, *, sentences: int = TRAIN_SENTENCES) -> Corpus:
    """Independent samples, characters as tokens, with the exact entropy."""
    return sampled_corpus(
        "surnames",
        truth(),
        description=DESCRIPTION,
        tokenizer="char",
        sentences=sentences,
        seed=seed,
    )
