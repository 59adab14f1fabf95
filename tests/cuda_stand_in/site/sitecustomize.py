"""Puts the stand-in into every Python program that is started with its variables; see README.md."""

import os

if os.environ.get("CUDA_STAND_IN"):
    from tests.cuda_stand_in import importing

    importing.install()
