"""A module that takes its time, as torch does from a cold disk."""

import time

time.sleep(60)
