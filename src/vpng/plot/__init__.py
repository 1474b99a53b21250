"""One look for all figures; drawing needs the extra `plot`."""
