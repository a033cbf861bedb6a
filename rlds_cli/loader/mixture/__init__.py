"""Several datasets in one loader."""
