"""Small things that methods, environments and the harness share; it knows none of them."""
