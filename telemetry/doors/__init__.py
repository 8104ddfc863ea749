"""Doors for what a site already runs: remote-write and OTLP in, PromQL in, remote-write out."""
