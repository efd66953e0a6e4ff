"""`kvtop profile check`: what would go wrong with a profile here and now, each with its fix.

seen     what the rules are told: the profile, its command line, this machine
facts    looking: fills it in (all I/O of this package, with installed and last)
rules/   one small function for each rule, named by its id: pure
report   all rules over the facts, and what that means for a start
"""

from kvtop.profiles.check.report import Report, report

__all__ = ["Report", "report"]
