"""Small things that every other room uses: nothing here knows what is inferred."""
