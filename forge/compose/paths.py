"""Where the YAML groups are: the same absolute path in a checkout, an editable install and a wheel."""

from pathlib import Path

CONF = (Path(__file__).parents[1] / "conf").resolve()
