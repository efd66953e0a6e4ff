"""The page of the profiles, drawn: pure functions from one view to lines. The page itself is screens/profiles.py."""
