"""The service of the acceptance tests, for what watches it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "acceptance"))

from service import service as service  # lies there
