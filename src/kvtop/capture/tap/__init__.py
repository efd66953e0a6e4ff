"""The byte splice between agents and vLLM: a process that forwards first and knows no HTTP."""
