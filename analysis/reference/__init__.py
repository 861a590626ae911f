"""Published numbers with their provenance, as data."""
