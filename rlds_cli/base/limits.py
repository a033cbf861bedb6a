"""Limits that writers and readers of manifests share; importing them imports nothing."""

MOST_ENTRIES = 1 << 12  # of the account of an archive, in a manifest
