"""Which steps a sample spans."""
