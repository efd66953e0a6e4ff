"""kvtop: the terminal cockpit for a local vLLM box."""

__version__ = "0.1.0"
