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
    ([("·", "d"), (" ok  ", "d"), ("!", "warn"), (" look  ", "d"), ("×", "bad"), (" fault", "d")], "judgements"),
    ([("–", "t")], "not known: never 0, never blank"),
    ([("~", "t")], "worked out, not read"),
    ([("n=7", "t")], "how many it was made of"),
)
"""(As it is drawn, what it means)."""

FIGURES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Cache",
        (
            ("cached", "prompt tokens of the window served from cache, over all its prompt tokens; vLLM's counters"),
            ("since start", "the same since the server began; never put in the window's place"),
            ("host, disk, p2p", "which tier they came from; – where this vLLM does not tell"),
            ("computed", "prompt tokens that had to be read anew"),
            ("prefill saved", "cached tokens over this server's own measured prefill rate"),
            ("match unit", "cached tokens are a multiple of it"),
        ),
    ),
    (
        "Offload",
        (
            (
                "store, load",
                "KV copied from GPU to host, and back; /h is the mean of a window, /s the peak of a column",
            ),
            ("tier, shm, RAM", "memory of this machine; it says nothing of a server elsewhere"),
        ),
    ),
    (
        "Queue",
        (
            ("running, waiting", "requests at the last reading"),
            ("capacity", "wait for room in the KV pool"),
            ("deferred", "wait for something else: a KV load, a LoRA slot"),
            ("KV pool", "blocks in use; full is no fault while nothing waits"),
            ("preempted", "thrown out of the pool and read again"),
            ("tok a step", "tokens that one step of the engine worked on"),
        ),
    ),
    (
        "TTFT",
        (
            ("p50 (2.5–5)", "half came sooner. A histogram knows the bucket; the value is a straight line inside it"),
            ("p95, p99", "need n ≥ 20 and n ≥ 100"),
            ("queue to decode", "means of the requests that finished"),
            ("gap", "between two tokens of an answer"),
        ),
    ),
    (
        "GPU",
        (
            ("util, mem, W, °C", "of now, from NVML; utilisation is never judged"),
            ("PCIe", "a sample of about 20 ms, seldom: of now, not of the window"),
        ),
    ),
    (
        "Turns",
        (
            ("a row", "one request, where it was the only one to finish between two readings; else n, with means"),
            ("TTFT", "queue + prefill, from counters"),
            ("slow", "over 3 times and 3 s more than its new tokens take at the measured rate; 10 s without a rate"),
        ),
    ),
)
"""(Panel, ((figure, what it means and where it comes from), ...))."""
