"""Files that several processes use: scratch folders, and measurements kept for the next process."""
