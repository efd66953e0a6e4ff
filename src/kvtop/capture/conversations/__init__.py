"""Which turn follows which, and whose they are."""
