"""Checks of what ranks measured, and of what happened to them."""
