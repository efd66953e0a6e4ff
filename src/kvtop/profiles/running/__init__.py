"""Servers as processes: started, followed to ready, watched, stopped; what is known of each stands in a file.

client     what the commands and the screen call        keeper     the process beside a server: its parent, who writes
record     that file, one a profile, and the last starts order      what a keeper is told, through a pipe
look       a profile's state, with a keeper or without   lock       one start, stop or switch at a time
progress   a log -> the stages of a start                failure    a log -> why it failed
ready      does it answer, and is it ours                asking     one GET
stages     a start's stages, as a screen shows them      text       a log's bytes -> clean lines
spawn      a process stands in the record, then it runs  orphans    what loses its parent comes to the keeper
family     which processes are a server's; signals       aftermath  what it leaves: workers, cards, /dev/shm
helpers    pre-start commands, sidecars, after the stop  tools      other programs, run to their end
runners/   venv, docker, compose, systemd: one interface logs       the log: rotated, read from its end, followed
switch     what the old server holds, seen to be free    adopt      servers that kvtop did not start, on this machine
attached   do those answer that are only watched         setup      what a list shows of a profile, as it was started
begun      the record of a start that begins             strangers  an older process answers for a sidecar
unkept     words for a server whose keeper is gone       beside     sidecars that have ended while it runs
"""
