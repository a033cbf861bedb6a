"""Places that files come from: a module for each kind, and one table of URL schemes."""
