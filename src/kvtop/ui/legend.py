"""The words of help: what each sign and each figure means, and where a figure comes from."""

from __future__ import annotations

from kvtop.ui.draw import BAR, Line

SIGNS: tuple[tuple[Line, str], ...] = (
    ([("━━━━", "cached-device"), ("━━", "lost"), ("──", "f")], "cached, lost, new"),
    ([("┄┄┄┄┄┄", "cached-device"), ("──", "f")], "in flight: expected"),
    ([(BAR * 4, "cached-device"), (BAR * 2, "cached-host"), (BAR * 2, "computed")], "what a whole is made of"),
    (
        [("device ", "cached-device"), ("host ", "cached-host"), ("disk ", "cached-disk"), ("p2p", "cached-p2p")],
        "where KV came from",
    ),
    ([("queue ", "queue"), ("prefill ", "prefill"), ("decode", "decode")], "where the time went"),
    ([("store ", "store"), ("load", "load")], "to the tier, from it"),
    ([("⣀", "cached-device"), ("   ", "t"), ("⣿", "cached-device")], "one dot is 0, no dot is no data"),
    ([("›", "bright"), (" in flight  ", "d"), ("▸", "bright"), (" chosen", "d")], "in the table of turns"),
    ([("·", "d"), (" fine  ", "d"), ("!", "warn"), (" look", "d")], "judgements of a turn"),
    ([("┄", "d")], "why it took its time is being worked out"),
    ([("×", "bad"), (" fault  ", "d"), ("?", "warn"), (" cannot tell", "d")], "judgements of a turn"),
    ([("–", "t")], "not known: never 0, never blank"),
    ([("~", "t")], "worked out, not read"),
    ([("n=7", "t")], "how many it was made of; of Cache and TTFT first tokens, others than those that finished"),
)
"""(As it is drawn, what it means)."""

CHIPS: tuple[tuple[str, str], ...] = (
    ("DOWN, STALE", "the server's numbers cannot be read; the sentence says why and since when. So do DEAD, NO HOST, "
                    "TLS, UNAUTHORIZED, NO STATS, NOT VLLM, TOO LARGE, HTTP ERROR"),
    ("LOADING", "its process runs and does not listen: it will when the model is loaded"),
    ("SLOW", "a turn waited long, and what for; until it or a newer one is opened, or it is older than the window"),
    ("QUEUE", "requests have waited for over 2 s, and what for"),
    ("RESTARTED", "the counters began again; the window counts from there"),
    ("SLEEPING", "its weights are off the GPU until /wake_up"),
    ("CACHE OFF", "the server was started without prefix caching"),
    ("LOW", "the cached share of the window is under share_poor (60 %), in 3 requests or more, and reading their "
            "prompts took at least 5 % of the time"),
    ("UNSURE", "a turn waited long, and the evidence for why fits several reasons; or no number of /metrics counts "
               "turns, and nothing is known of them"),
    ("IDLE", "nobody asked anything for the window's length, within 1 to 5 min"),
    ("FIRST LOOK", "it was not read yet"),
    ("OK", "none of these"),
)  # fmt: skip
"""(The word at the top left, when it stands there), worst first."""

FILTER: tuple[tuple[str, str], ...] = (
    ("slow queued new", "turns that waited long, in the queue, or for a long new input"),
    ("failed", "ended by an error, by their client, or in the middle; aborted, cut: only those"),
    ("done flight", "finished, in flight; also waits, reads, writes"),
    ("side", "side calls and subagents, all their turns, and compactions of a conversation"),
    ("import", "what kvtop import brought here"),
    ("past", "what went past the tap"),
    ("c12", "the conversation that began with turn 12"),
    ("group", "rows of several requests"),
    ("new>10k", "tokens: prompt, new, out; with < > <= >= ="),
    ("cached<50", "percent of the prompt"),
    ("ttft>=5", "seconds: ttft, queue, prefill, decode"),
    ("any other word", "is looked for in number, agent, model, engine and finish; all words have to hold"),
)
"""(What can be typed after the filter's key, which turns it leaves)."""

MARKS: tuple[tuple[Line, str], ...] = (
    ([("○", "d"), (" stopped", "d")], "no server of it runs: it was ended on purpose, or never started"),
    ([("◐", "warn"), (" starts, stops", "warn")], "on its way, up or down"),
    ([("●", "bright"), (" runs", "bright")], "kvtop started its server, and it has answered"),
    (
        [("◆", "bright"), (" foreign", "bright")],
        "its server runs, and kvtop did not start it; of no profile: a row process 123, below the profiles",
    ),
    (
        [("×", "bad"), (" failed", "bad")],
        "its last start came to nothing, or its server ended though nobody asked for that: why stands below",
    ),
    ([("×", "bad"), (" unreadable", "bad")], "its file is no profile: the line and what is wrong stand behind it"),
    (
        [("◆", "bright"), (" answers  ", "d"), ("◇", "d"), (" no answer", "d")],
        "only watched (runner attach): somebody else starts it, kvtop asks it; watched: not asked yet",
    ),
    (
        [("× ", "bad"), ("! ", "warn"), ("·", "d")],
        "error, warning, note of check: an error refuses a start, a warning asks first, a note does neither",
    ),
    ([("·", "ok"), (" over  ", "d"), ("▸", "bright"), (" runs", "d")], "stages of a start"),
)
"""(A mark of the page of profiles and its state, what they mean)."""

OF_PROFILES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Profiles",
        (
            ("tier", "its CPU tier for the KV cache; – none, or not known"),
            ("GPU", "the cards that it may use; – not said"),
            ("good start", "how long the last good one took, until it answered"),
            (
                "share, n",
                "prompt tokens from cache, over n first tokens: as the dashboard last saw that server asked anything, "
                "in a window of 5 min, perhaps long ago; – never",
            ),
            ("TTFT p50", "of the same requests: half of the first tokens came sooner"),
            ("requests", "under way now, in questions; not known: it is not watched, and did not tell"),
            ("memory", "in Check: what the tier asks for, and what this machine has of it now"),
        ),
    ),
    (
        "Start",
        (
            ("took", "seconds of a stage in this start; usual: the median of the last good starts, five at most"),
            ("left (n=5)", "what the last n good starts of this profile say; longer than usual: over that by now"),
            ("pre-start", "commands that run before the server, and its sidecars"),
            ("process up", "until vLLM begins to load the model"),
            ("weights", "the model is loaded: shards of its files"),
            ("compile", "torch.compile, on a CPU in a warm-up of its own"),
            ("KV cache", "its room is measured, and it is made"),
            ("CUDA graphs", "are captured"),
            ("port answers", "until /health answers, by the process that was started and with its model"),
        ),
    ),
    (
        "Log",
        (
            ("a line", "time, level, and what is said: without the process and the place in vLLM's source"),
            ("polls left out", "lines that tell only of an answered GET of /metrics, /health, /v1/models or the like"),
            ("following", "the end is shown as it grows"),
        ),
    ),
)
"""As FIGURES, of the page of profiles and those that it opens."""

FIGURES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Cache",
        (
            ("cached", "prompt tokens of the window served from cache, over all its prompt tokens; vLLM's counters"),
            ("since start", "the same since the server began; never put in the window's place"),
            ("host, disk, p2p", "which tier they came from; – where this vLLM does not tell"),
            ("computed", "prompt tokens that had to be read anew"),
            ("tokens saved", "prompt tokens of the window that came from cache"),
            ("prefill saved", "the seconds that reading them would have taken: tokens saved over prefill speed"),
            ("prefill speed", "computed tokens a second of prefill, measured on this server: window, hour or all"),
            ("match unit", "cached tokens are a multiple of it"),
            ("turn 6 ▴", "under the chart: where a slow turn ended, first the one in the sentence"),
        ),
    ),
    (
        "Offload",
        (
            (
                "store, load",
                "KV copied from GPU to host, and back: the mean of a window, /s for 10 s and /h for the others; in the "
                "chart the peak of a column",
            ),
            (
                "21 min, start",
                "second row, here and in TTFT: the last hour, or what was seen of it; the mean since the server's "
                "start where the window is all that was seen",
            ),
            ("total", "since the server began"),
            ("copies, speed", "how many transfers since the start, and bytes over the time that they took"),
            ("failed", "transfers and allocations that failed since the start; – where this vLLM does not count them"),
            ("PCIe now", "of all cards: GPU to host under store, host to GPU under load"),
            ("of prompt", "share of the window's prompt tokens that came back from the tier"),
            ("tier, shm, RAM", "memory of this machine; it says nothing of a server elsewhere"),
        ),
    ),
    (
        "Queue",
        (
            ("running, waiting", "requests at the last reading"),
            ("capacity", "wait for scheduling capacity: a seat in the batch, budget of the step, room in the KV pool"),
            ("deferred", "wait for something else: a KV load, a LoRA slot"),
            ("KV pool", "blocks in use; full is no fault while nothing waits"),
            ("preempted", "thrown out of the pool and read again"),
            ("tok a step", "tokens that one step of the engine worked on"),
            (
                "finished",
                "requests that ended in the window: by themselves, at their limit, failed; aborted only where there "
                "are some, since vLLM counts no client that hangs up",
            ),
            ("prompt in", "prompt tokens a second, from cache or not; out: tokens written a second by all answers"),
        ),
    ),
    (
        "TTFT",
        (
            (
                "p50 (2.5–5)",
                "half came sooner. A histogram knows the bucket; the value is a straight line inside it, no higher "
                "than the mean allows: ~ where the bucket has no room",
            ),
            ("p95, p99", "need n ≥ 20 and n ≥ 100"),
            (
                "queue to decode",
                "means of the requests that finished; p50 and mean count first tokens, so other requests",
            ),
            ("writes", "speed of one answer: 1 over the mean gap"),
            ("gap", "between two tokens of an answer"),
            ("drafts", "of a speculator: how much of them was accepted"),
        ),
    ),
    (
        "GPU",
        (
            ("util, mem, W, °C", "of now, from NVML; utilisation is never judged"),
            ("PCIe", "a sample of about 20 ms, seldom: of now, not of the window"),
            ("held back", "why clocks are low: power cap, heat; stays 10 s after it was last seen"),
        ),
    ),
    (
        "Turns",
        (
            (
                "a row",
                "one request that went through a tap; else from counters: the only one to finish between two "
                "readings, or n of them, with means",
            ),
            (
                "m15",
                "from metrics: a row that the counters alone tell of, where turns were captured. 15 is the captured "
                "one, which `kvtop turns` knows",
            ),
            ("r3", "a request of kvtop's own replay, with what the replay noted of it"),
            (
                "agent",
                "who asked, from its user-agent; ↳ before it: a subagent's turn, or a side call's; past tap: a tap "
                "ran, and did not see it; kvtop replay: kvtop itself",
            ),
            ("time", "when it ended; in flight: when it began"),
            (
                "cached, new",
                "tokens of its prompt from cache, and read anew; ~0 % is known from the counters alone. Once it is "
                "known why, new is without what was read before and again: red in its bar",
            ),
            ("read before", "on its page: what the cache could have given, had nothing changed and nothing been lost"),
            ("expected", "the same of its prompt as it is: expected_cached_tokens of `kvtop why --json`"),
            ("re-read, lost", "read before, and read again: since the prompt had changed, or since it was lost"),
            (
                "queue, TTFT",
                "TTFT: exact at the tap; ~ from counters, or of no stream: queue + prefill. Waiting for a KV load is "
                "queue time",
            ),
            ("┄, ~", "in flight: expected from the size of the prompt and the turn before it"),
            (
                "tap sees 92 %",
                "of the prompt tokens that the server counted in the window, at most: told when it has been so for 3 s",
            ),
            ("out, tok/s", "tokens it wrote; those after the first one over the time that they took"),
            ("took", "from arrival to the last token"),
            (
                "slow",
                "a TTFT of 10 s, or over 3 times and 3 s more than its new tokens take at the measured rate, unless "
                "config.toml says otherwise",
            ),
        ),
    ),
    (
        "Diff",
        (
            ("same up to", "tokens that both prompts begin with; behind them nothing is reused"),
            ("reusable", "whole blocks of these, never the last token of a prompt"),
            ("lost", "what would be reusable had nothing changed, less what is"),
            ("block", "the server's match unit: only whole ones are found again"),
            ("cached up to", "as the server answered; reusable up to: what it should have had"),
            ("a cause's tokens", "how much longer both are the same when it is put back; seconds by its own prefill"),
            ("-, +", "only in the old, in the new prompt; shaded blue: from cache"),
            ("▏, ⏎", "ends of tokens, newlines; \\u200d: a character that has no cell, where prompts differ"),
        ),
    ),
)
"""(Panel, ((figure, what it means and where it comes from), ...))."""
