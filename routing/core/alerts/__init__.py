"""When people are told: rules on figures, and what becomes of them over time. Pure."""
