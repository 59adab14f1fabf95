"""Diagnosis: what happened, and to which rank, from what is known of every rank."""
