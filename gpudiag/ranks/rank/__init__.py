"""What runs in the ranks' processes: standard library only, and torch only where a rank needs it."""
