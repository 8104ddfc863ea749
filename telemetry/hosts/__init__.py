"""What a host counts of its links: pure parsers, and thin readers beside them.

A parser takes the text or bytes a kernel, a driver or a tool gives and returns values; whatever it
is fed, it raises nothing but `HostError`. It imports the standard library only, so that it runs
wherever an agent does.
"""
