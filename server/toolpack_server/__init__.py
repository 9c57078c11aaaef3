"""Names for authors of toolpacks and for programs that use a server.

`__init__.pyi` lists the names. Each name is imported when it is first used, so a client program doesn't load the
server.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
