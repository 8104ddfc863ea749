"""Fleets and all that is kept by name, as one document (docs/declared.md)."""
