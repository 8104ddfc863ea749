"""Alerts: rules people write, incidents that follow, who was told."""
