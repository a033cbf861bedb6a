"""Maintain the datasets of a home: verify, repair, lock, re-encode, clean up, remove."""
