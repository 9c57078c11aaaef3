"""What databases and files add to the server."""

from server.features.api import Feature
from server.features.parts.database import Database
from server.features.parts.files import Files
from server.features.scratch import Scratch, check_folder


class PartsFeature(Feature):
    name = "parts"
    volumes = (Database, Files)
    scratch = Scratch
    before_serving = (check_folder,)
