"""Which samples, in what order: index maths, without data."""
