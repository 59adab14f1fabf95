"""Checks of the GPUs: there, healthy, set right, and told by the driver's Xids."""
