"""What runs in the processes of the ranks: standard library, and torch only where a rank needs it."""
