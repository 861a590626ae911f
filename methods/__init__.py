"""What is compared: one module per method, with all of its maths."""
