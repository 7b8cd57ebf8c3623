"""Documents in which a few tokens are repeated over and over, as OLMo leaves them out.

OLMo-core masks a sequence with a run of an n-gram, n from 1 to 13, that comes 32 times or more
(allenai/OLMo-core, InstanceFilterConfig; arXiv:2501.00656, section 3.1); here it is a document.
"""

from __future__ import annotations

import numpy as np

LONGEST_NGRAM, TIMES = 13, 32


def repetitive(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Whether each document has such a run: bool [documents]. ends: how many tokens there are up to
    the end of each, int [documents].
    """
    found = np.zeros(len(ends), dtype=bool)
    for period in range(1, min(LONGEST_NGRAM, len(tokens) - 1) + 1):
        same = tokens[period:] == tokens[:-period]
        across = (ends[:-1, None] - np.arange(1, period + 1)).ravel()
        same[across[(across >= 0) & (across < len(same))]] = False  # of two documents
        breaks = np.concatenate([[-1], np.flatnonzero(~same), [len(same)]])
        is_run = np.diff(breaks) - 1 >= (TIMES - 1) * period
        begins = breaks[:-1][is_run] + 1
        found[np.searchsorted(ends, begins, side="right")] = True
    return found
