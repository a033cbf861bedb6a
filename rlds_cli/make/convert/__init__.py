"""From an archive, or from a user's own episodes, to a dataset of the store."""
