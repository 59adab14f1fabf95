"""Every fault that a simulated machine can have."""
