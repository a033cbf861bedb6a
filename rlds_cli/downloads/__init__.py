"""From a registered id to a dataset of this home: listed, fetched, verified, converted."""
