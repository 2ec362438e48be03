"""Files of ours: Blosc2 stores, atomic publication, checksums."""
