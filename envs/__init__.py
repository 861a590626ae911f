"""Where agents act."""
