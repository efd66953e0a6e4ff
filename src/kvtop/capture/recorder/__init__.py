"""The process that reads copies of the traffic: frames, then HTTP, then turns."""
