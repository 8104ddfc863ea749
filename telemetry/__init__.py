"""Telemetry: the wire schema, the agent that fills it, and the store that keeps it."""
