"""Write datasets in the formats of other libraries."""
