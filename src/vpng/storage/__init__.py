"""Files that are whole or absent, and archives with checksums."""
