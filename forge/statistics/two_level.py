"""Seeds and items at once: the interval of a mean over a table of seeds by items.

Both are random: other seeds would have been drawn, and other items asked. A value is the overall
mean, plus an effect of its seed, plus one of its item, plus the rest.
"""

from __future__ import annotations

import numpy as np

from forge.statistics.interval import Interval, student


def two_level(table: np.ndarray) -> Interval:
    """The mean of a table [seeds, items], with its interval over seeds and items.

    The variance of the mean is (S + I - E) / (seeds items), of the mean squares of seeds, items and
    rest in the analysis of variance with two crossed random effects; never less than that of one
    level alone. The degrees of freedom are Satterthwaite's (Biometrics Bulletin 2, 1946). Of
    differences between two arms it is the interval of their difference.
    """
    table = np.asarray(table, dtype=float)
    seeds, items = table.shape
    value = float(table.mean())
    if min(seeds, items) < 2:
        return Interval(value=value, n=seeds * items)
    of_seed, of_item = table.mean(axis=1), table.mean(axis=0)
    rest = table - of_seed[:, None] - of_item[None, :] + value
    squares = np.array(
        [
            items * of_seed.var(ddof=1),
            seeds * of_item.var(ddof=1),
            (rest**2).sum() / ((seeds - 1) * (items - 1)),
        ]
    )
    freedom = np.array([seeds - 1, items - 1, (seeds - 1) * (items - 1)])
    combined = squares @ np.array([1.0, 1.0, -1.0])
    most = int(squares[:2].argmax())
    if combined <= squares[most]:
        combined, degrees = squares[most], float(freedom[most])
    else:
        degrees = float(combined**2 / (squares**2 / freedom).sum())
    stderr = float(np.sqrt(combined / table.size))
    return student(value, stderr, max(degrees, 1.0), table.size)
