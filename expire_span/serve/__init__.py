"""A page on this machine: type a text and see what is remembered of it."""
