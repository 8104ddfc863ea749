"""Routing: decide where prompts are prefilled, deliver the decision, prove it took effect."""
