"""Reports and snapshots as text, JSON and more: nothing here decides anything."""
