"""The server's log, as all of its parts write to it.

It has one name, which whoever runs the server may configure; how its lines look is for `observability/log.py`
to say.
"""

import logging

log = logging.getLogger("toolpack_server")
