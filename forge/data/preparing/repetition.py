"""Documents with a few tokens repeated over and over, left out as in OLMo.

OLMo-core masks a sequence with an n-gram, n from 1 to 13, repeated 32 times or more in a row
(allenai/OLMo-core, InstanceFilterConfig; arXiv:2501.00656, section 3.1); forge drops a document.
"""

from __future__ import annotations

import numpy as np

LONGEST_NGRAM, TIMES = 13, 32


def repetitive(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Mask of the documents with a repeated run: bool [documents]. ends: number of tokens up to the
    end of each document, int [documents].
    """
    is_repetitive = np.zeros(len(ends), dtype=bool)
    for period in range(1, min(LONGEST_NGRAM, len(tokens) - 1) + 1):
        equal = tokens[period:] == tokens[:-period]
        across = (ends[:-1, None] - np.arange(1, period + 1)).ravel()
        equal[across[(across >= 0) & (across < len(equal))]] = (
            False  # a run never crosses documents
        )
        breaks = np.concatenate([[-1], np.flatnonzero(~equal), [len(equal)]])
        is_run = np.diff(breaks) - 1 >= (TIMES - 1) * period
        begins = breaks[:-1][is_run] + 1
        is_repetitive[np.searchsorted(ends, begins, side="right")] = True
    return is_repetitive
