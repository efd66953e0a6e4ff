"""Servers as processes: started, followed to ready, watched, stopped; what is known of each stands in a file.

record    the file, one a profile        keeper    the detached process beside a server: its parent, and who writes
progress  a log -> the stages of a start family    which processes are a server's; signals that hit no stranger
failure   a log -> why a start failed    runners/  venv, docker, compose, systemd: one interface
ready     does it answer, and is it ours logs      the log file: opened, rotated, read from its end
look      a profile's state, as anybody can work it out, with the keeper or without
lock      one start or switch at a time  client    what the commands and the screen call: start, stop, follow
switch    stop, see what is free, start  adopt     servers that kvtop did not start
"""
