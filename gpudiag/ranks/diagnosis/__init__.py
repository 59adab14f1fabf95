"""From what is known of every rank to what happened, and to which rank."""
