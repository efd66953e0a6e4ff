"""The turns on disk: one SQLite file, byte-exact."""
