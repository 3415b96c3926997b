"""One live, read-only page for all sweeps of an output.

`board` follows journals and starts separate processes that make the reports' pages. `app` answers requests of this
machine's browsers and refuses requests from other sites.
"""
