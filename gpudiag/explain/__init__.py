"""What a code, an error text or a pile of logs means."""
