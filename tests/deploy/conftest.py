"""The service of the acceptance tests, for Prometheus and Grafana."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "acceptance"))

from service import service as service  # lies there
