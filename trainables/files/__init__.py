"""Files that several processes use: atomic writes, locks, scratch folders, checksums and object stores."""
