"""Other forms -> a profile. Nothing that they hold is run; secrets are named by where they are, never copied.

draft      the profile in the making            words      a command line, also within all the others
word       one word, and what is known of it    clean      the secrets that are left in a draft
script     a plain shell script (shell: its words)        docker     `docker run` and `docker inspect`
builtin    what the shell's own words do        expand     variables put into words (arithmetic: $((…)))
others     commands that are none of vLLM's     search_path  PATH as a script changes it
compose    a service of a compose file (interpolate)      unit       a systemd unit
process    a running server                               pick       which of them a text is
kinds      tables and lists in what others wrote          variables  files of variables; which of them matter
keys       the flags of [serve] that have a key of their own
"""
