"""What the places of an archive offer: one module for each kind of place."""
