"""The special words of a page, which link to their definitions.

docs/reference/glossary.md has the same.
"""

from __future__ import annotations

from prooflops_gate.page.section import Section, anchor_of_word

WORDS = {
    "contended": (
        "measured while other work used the same cores or card; the rate is a lower bound. The "
        "threads of a product wait for each other, so it may be fifty times too low."
    ),
    "dense peak": (
        "the vendor's highest rate without structured sparsity, or the rate that `--peak` states. "
        "For a CPU: cores times FLOPs per clock times the measured clock, so shares differ "
        "from run to run. MFU is a share of the dense peak."
    ),
    "floor": (
        "the least that a healthy device delivers; a wide floor applies to any device, and "
        "finds only gross defects."
    ),
    "best rate": "the rate of this machine's fastest product of a dtype in this run.",
    "spread": (
        "the width of the rounds' interquartile range, or of their median's 95 % interval if that "
        "is wider, as a share of the median."
    ),
}


def words_section() -> Section:
    parts = [
        Section(word, answer=meaning, anchor=anchor_of_word(word))
        for word, meaning in WORDS.items()
    ]
    return Section("Glossary", parts=parts, anchor="words", is_folded=True)
