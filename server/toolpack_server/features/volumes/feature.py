"""The feature that adds databases and files to the server."""

from toolpack_server.features.volumes.databases.database import Database
from toolpack_server.features.volumes.files.files import Files
from toolpack_server.volumes.scratch import check_folder
from toolpack_server.wiring.feature import Feature


class PartsFeature(Feature):
    name = "parts"
    volumes = (Database, Files)
    before_serving = (check_folder,)
