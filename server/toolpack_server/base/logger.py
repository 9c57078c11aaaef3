"""The server's logger. Operators can configure the logger by its name; `observability/log.py` formats its lines."""

import logging

log = logging.getLogger("toolpack_server")
