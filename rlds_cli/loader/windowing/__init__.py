"""What one sample is: rows around an anchor step, and where they lie."""
