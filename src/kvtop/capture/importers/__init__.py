"""Captured traffic of other tools: one module a format, each giving exchanges or what was wrong with a record."""
