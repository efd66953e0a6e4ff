"""The rules: each cause a function that claims what it explains."""
