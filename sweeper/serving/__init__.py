"""One live page for all sweeps of an output.

`board` follows journals, `painting` has the report's pages made, `app` answers requests, `guard` says whose.
"""
