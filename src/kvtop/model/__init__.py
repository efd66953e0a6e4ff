"""What the numbers mean: frozen values and pure functions, no I/O."""
