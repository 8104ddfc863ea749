"""Windows: when nothing may change, when it may, and when something is being worked on."""
