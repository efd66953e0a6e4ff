"""Why was this turn slow: what the prompt lost, what the engine lost, and of what. Pure, but for the modules that ask
a server (tokens, replay, events)."""
