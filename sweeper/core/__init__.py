"""What every folder of the service shares: errors, names, paths, hashes and table schemas."""
