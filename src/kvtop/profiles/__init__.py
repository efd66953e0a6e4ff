"""`vllm serve` configurations: the files, what they run, what would go wrong, and their processes.

profile    what a file may hold          folder     the files: reading, `extends`, where each value came from
flags      vLLM's command line, read     launch     what is run: words, environment, secrets by reference
importers/ other forms -> a profile      check/     the rules, each a function over facts
running/   processes: start, progress, log, stop, switch; a record of each on disk
"""
