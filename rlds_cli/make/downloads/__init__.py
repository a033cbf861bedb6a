"""Download a registered dataset: list its files, fetch and verify them, convert them."""
