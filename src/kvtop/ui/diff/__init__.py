"""The diff of two turns as lines: pure layout, nothing of a screen."""
