"""Jobs: what is done at a time that people set, once, and why it was or was not."""
