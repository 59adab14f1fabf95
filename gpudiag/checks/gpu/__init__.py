"""Checks of the GPUs: present, healthy, set right, and what the driver's Xids report."""
