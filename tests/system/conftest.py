"""What tests of the commands share; a module that wants another home has one of its own."""

from __future__ import annotations

from commandbox import commands_at_home, started_beside

__all__ = ["commands_at_home", "started_beside"]
