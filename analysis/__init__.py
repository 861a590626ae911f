"""Tables from records alone."""
