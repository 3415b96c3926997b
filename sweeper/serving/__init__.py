"""One live page for all sweeps of an output, and tools for agents: shells over what the commands do.

`board` follows journals, `painting` has the report's pages made, `app` answers requests, `guard` says whose.
"""
