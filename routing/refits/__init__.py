"""Prefill profiles fitted again from telemetry, kept as proposals that a person applies."""
