"""How taps are planned, started, found, stopped, and how agents are pointed at them."""
