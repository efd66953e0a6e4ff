"""Where numbers come from. A source does I/O and gives no meaning.

It never raises for what the world does to it: a server that is gone, a driver that was unloaded or a file that may not
be read is a value (`SourceDown`, `GpuReading.error`, None), with its cause in words. Text from outside leaves a source
only as `errors.printable` makes it, but for the labels of series, which name them.
"""
