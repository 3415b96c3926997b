"""The command line, one file for each group of commands. Only this folder prints, and no other folder imports it."""
