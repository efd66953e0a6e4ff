"""`vllm serve` configurations: the files, what they run, what would go wrong, and their processes.

profile    what a file may hold (schema)         folder     the files: reading (valid), `extends` (merge), origins
flags      vLLM's command line, read             launch     what is run: words, environment, secrets by reference
spelling   which flags are the same              shell, text  the same as a line for a shell, and as TOML
vocabulary  which flags a vLLM takes             config_file, docker_options  other places that hold some
yaml_text  YAML that nobody trusts
secret     what is shown nowhere                 differences, match  what is asked for, compared
importers/ other forms -> a profile              check/     the rules, each a function over facts
running/   processes: start, progress, log, stop, switch; a record of each on disk
"""
