"""A module that says in which process it was imported."""

import os

IMPORTED_IN = os.getpid()
