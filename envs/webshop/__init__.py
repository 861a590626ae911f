"""WebShop: a shop in text, in plain Python and numpy (arXiv:2207.01206)."""
