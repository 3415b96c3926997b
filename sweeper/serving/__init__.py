"""One live, read-only page for all sweeps of an output.

`board` follows journals and has the report's pages made in processes of their own; `app` answers requests of this
machine's browsers and refuses those of other sites.
"""
