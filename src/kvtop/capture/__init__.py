"""Real requests: the byte splice between agents and vLLM, the recorder beside it, and the turns on disk."""
