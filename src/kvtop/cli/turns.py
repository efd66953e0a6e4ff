"""`kvtop turns`: single requests, captured by the tap; or, from a folder of /metrics texts, told apart by counters."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kvtop.cli.args import Parser
from kvtop.errors import UsageError, printable


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop turns",
        usage="%(prog)s [-h] [--last N] [--conversation ID] [--slow] [--json]\n"
        "       %(prog)s --forget ID [ID ...]|all [--yes] [--json]\n"
        "       %(prog)s --check [--json]\n"
        "       %(prog)s --from-metrics DIR [--json]",
        description="Requests that went through kvtop tap, or were imported, newest first. Unknown is null (–). A "
        "share of cached tokens that the counters tell, since the server does not, is marked ~; so is the TTFT of an "
        "answer in one piece: queue and prefill. The time is that of its end; in flight, of its begin. Columns that a "
        "terminal has no room for are left out.",
    )
    parser.add_argument(
        "--last", metavar="N", type=_count, help="how many (default: what the terminal holds, else 20; --json: all)"
    )
    parser.add_argument("--conversation", metavar="ID", help="only this conversation, for instance c12 or 12")
    parser.add_argument(
        "--slow", action="store_true", help="only those whose first token took much longer than expected"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON list; its new_tokens are the prompt less what was cached (column computed): what of them was "
        "read before tells tokens of kvtop why --json",
    )
    parser.add_argument(
        "--forget", metavar="ID", nargs="*", help="delete these turns and what was said in them, or all"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before --forget all")
    parser.add_argument("--check", action="store_true", help="read everything back and tell what is damaged")
    parser.add_argument(
        "--from-metrics",
        metavar="DIR",
        help="instead: requests that can be told apart from the counters of consecutive /metrics texts, *.txt or "
        "*.txt.gz in name order; a row of n requests holds their means",
    )
    args = parser.parse_args(argv)
    _one_thing(args)
    if args.from_metrics is not None:
        from kvtop.cli import counted

        return counted.main(args.from_metrics, args.json)
    from kvtop.cli import captured

    if args.forget is not None:
        return captured.forget(args.forget, yes=args.yes, as_json=args.json)
    if args.check:
        return captured.check(as_json=args.json)
    conversation = args.conversation
    if conversation is not None and conversation.isascii() and conversation.isdigit():
        conversation = f"c{conversation}"
    return captured.show(last=args.last, conversation=conversation, slow=args.slow, as_json=args.json)


def _one_thing(args: argparse.Namespace) -> None:
    """Raises UsageError for options that do not go together."""
    chosen = [f"--{name.replace('_', '-')}" for name in ("from_metrics", "forget") if getattr(args, name) is not None]
    chosen += ["--check"] if args.check else []
    limits = [f"--{name}" for name in ("last", "conversation") if getattr(args, name) is not None]
    limits += ["--slow"] if args.slow else []
    if len(chosen) > 1 or (chosen and limits):
        raise UsageError(f"{' and '.join([*chosen, *limits][:2])} do not go together", "kvtop turns --help tells more")
    if args.yes and args.forget is None:
        raise UsageError("--yes is for --forget all")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:12]) <= 10**9:
        raise argparse.ArgumentTypeError(f"'{printable(text, 20)}' is no number of turns: 1 or more")
    return int(text)
