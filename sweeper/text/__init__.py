"""How values are written for people: names, numbers, durations, tables; and what must not be written."""
